package web

import "net/http"

// problem is an error in the form of RFC 9457.
type problem struct {
	Title  string `json:"title"` // of the status
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func writeProblem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	writeBody(w, status, problem{http.StatusText(status), status, detail})
}
