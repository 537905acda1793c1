package web

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// explorer links to a block explorer; the zero value creates no links.
type explorer struct{ base string }

func parseExplorer(raw string) (explorer, error) {
	if raw == "" {
		return explorer{}, nil
	}

	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return explorer{}, fmt.Errorf("read EXPLORER_URL: must be http(s)://host[/path], without credentials, query or fragment, as https://sepolia.etherscan.io")
	}

	return explorer{strings.TrimSuffix(raw, "/")}, nil
}

func (e explorer) tx(hash string) string         { return e.link("/tx/", hash) }
func (e explorer) block(n int64) string          { return e.link("/block/", strconv.FormatInt(n, 10)) }
func (e explorer) address(address string) string { return e.link("/address/", address) }

// link is empty without an explorer: templates then show plain text.
func (e explorer) link(path, what string) string {
	if e.base == "" || what == "" {
		return ""
	}

	return e.base + path + url.PathEscape(what)
}
