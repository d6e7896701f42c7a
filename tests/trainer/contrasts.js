// The contrasts of what can be seen on a page (WCAG 2.2): of borders and bars with what is around and
// inside, and of texts with what is behind them.
(() => {
  const parse = (color) => {
    const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const over = (top, below) => {
    const mix = (name) => top[name] * top.a + below[name] * (1 - top.a);
    return { r: mix("r"), g: mix("g"), b: mix("b"), a: 1 };
  };
  const behind = (element) => {
    if (!element) return { r: 255, g: 255, b: 255, a: 1 };
    const own = parse(getComputedStyle(element).backgroundColor);
    return own.a === 1 ? own : over(own, behind(element.parentElement));
  };
  const luminance = ({ r, g, b }) => {
    const linear = [r, g, b].map((value) => value / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const found = [];
  const tell = (kind, element, color, below) => found.push({
    kind,
    name: element.id || element.className || element.tagName,
    contrast: contrast(over(color, below), below),
  });
  for (const element of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    if (!element.checkVisibility() || box.width < 2 || box.height < 2 || element.closest("svg, [disabled], .busy")) continue;
    const around = behind(element.parentElement);
    if (parseFloat(style.borderTopWidth) > 0 && parse(style.borderTopColor).a > 0) {
      tell("border", element, parse(style.borderTopColor), around);
    }
    if (element.matches(".fill")) {
      tell("bar", element, parse(style.backgroundColor), behind(element.parentElement));
      tell("bar", element, parse(style.backgroundColor), behind(element.closest(".card")));
    }
    const texts = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (texts) tell("text", element, parse(style.color), behind(element));
  }
  return found;
})()
