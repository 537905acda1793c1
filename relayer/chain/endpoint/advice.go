package endpoint

import (
	"errors"
	"net/http"
	"strings"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// Advice is what an operator does about an endpoint's error, ": " before it; "" if that is not known.
func Advice(err error) string {
	page, isPage := errors.AsType[*rpc.Page](err)
	status := 0
	if isPage {
		status = page.Status
	}

	switch kind := rpc.Classify(err); {
	case errors.Is(err, ErrWrongChain):
		return ": correct its URL in RPC_URLS, or CHAIN_ID"
	case isPage && status == 0:
		return ": it answers with a page and not with JSON-RPC: correct its host, port and path in RPC_URLS"
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return ": the path of its URL in RPC_URLS is wrong, or the key in it"
	case kind == rpc.Unsupported, status == http.StatusForbidden:
		return ": it wants an API key, or refuses this one: correct its URL in RPC_URLS"
	case kind == rpc.RateLimited:
		return ": its allowance is used up: wait, raise it with the provider, or name another endpoint in RPC_URLS"
	}

	for _, w := range connectionWords {
		if err != nil && strings.Contains(err.Error(), w.said) {
			return w.remedy
		}
	}

	return ""
}

// connectionWords are in errors of Go's network packages.
var connectionWords = []struct{ said, remedy string }{
	{"no such host", ": its host is not known: correct RPC_URLS, or the DNS"},
	{"connection refused", ": nothing accepts connections there: start the node, or correct host and port in RPC_URLS"},
	{"certificate", ": its certificate is not accepted: correct the host in RPC_URLS, or trust its authority"},
	{"HTTP response to HTTPS client", ": it has no TLS: write http:// or ws:// in RPC_URLS"},
}
