"""The answer to a request that cannot be served."""


class Refusal(Exception):  # noqa: N818 - an answer, mostly to a client's error.
    """An answer that refuses a request, with a status, an error and a remedy.

    `key` is the invalid key of the request, if there is one.
    """

    def __init__(
        self, status: int, error: str, fix: str, key: str | None = None, **headers: str
    ) -> None:
        super().__init__(error)
        self.status, self.error, self.fix, self.key = status, error, fix, key
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
