package web

import (
	_ "embed"
	"net/http"
)

//go:embed assets/openapi.yaml
var openAPI []byte

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openAPI) // a client that hung up
}
