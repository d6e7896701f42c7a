// Swagger's page of the routes, from this server's own files; no validator elsewhere is asked.
"use strict";

SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", validatorUrl: null, deepLinking: true });
