package web

import (
	"net/url"
	"strconv"
)

// explorer links to a block explorer; the zero value creates no links.
type explorer struct{ base string }

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
