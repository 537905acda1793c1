// Package redact keeps credentials out of errors and logs: keys in RPC URLs and passwords in connection strings.
package redact

import (
	"errors"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const mask = "***"

// minPath is the length from which a part of a URL's path counts as a key: "v2" and "rpc" are none, and masking them would
// garble every text.
const minPath = 8

// URL shows a URL's scheme and host, without what may be a key: user, path, query, and host names below the registered domain,
// which some providers make up per customer. It never fails.
func URL(raw string) string {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Host == "" {
		return mask
	}
	host := u.Hostname()
	if net.ParseIP(host) == nil {
		if labels := strings.Split(host, "."); len(labels) > 2 {
			host = mask + "." + strings.Join(labels[len(labels)-2:], ".")
		}
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := u.Port(); port != "" {
		host += ":" + port
	}
	return u.Scheme + "://" + host
}

// Secrets masks what is secret in a set of URLs and connection strings. It is immutable.
type Secrets struct {
	replace *strings.Replacer
}

var keyword = regexp.MustCompile(`(?i)(?:password|sslpassword|passfile)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))`)

// New collects the secrets of URLs and of Postgres connection strings in either form.
func New(raw ...string) *Secrets {
	found := map[string]string{}
	add := func(secret string) {
		if len(secret) < 3 { // masking a single letter would show where it stands
			return
		}
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret)} {
			found[form] = mask
		}
	}
	for _, r := range raw {
		r = strings.TrimSpace(r)
		if r == "" {
			continue
		}
		u, err := url.Parse(r)
		if err != nil || u.Scheme == "" {
			for _, m := range keyword.FindAllStringSubmatch(r, -1) {
				add(m[1])
				add(m[2])
			}
			found[r] = mask
			continue
		}
		found[r] = URL(r)
		if host := u.Hostname(); net.ParseIP(host) == nil && strings.Count(host, ".") > 1 {
			if labels := strings.Split(host, "."); !strings.ContainsAny(host, ":,/") {
				found[host] = mask + "." + strings.Join(labels[len(labels)-2:], ".")
			} else {
				found[host] = mask // several URLs in one text
			}
		}
		if u.User != nil {
			if password, ok := u.User.Password(); ok {
				add(password)
				found[u.User.String()] = mask
			} else {
				add(u.User.Username()) // a lone user of a URL is a token
			}
		}
		if !strings.HasPrefix(u.Scheme, "postgres") {
			if len(u.Path) > minPath {
				found[u.EscapedPath()] = "/" + mask
			}
			for part := range strings.SplitSeq(u.Path, "/") {
				if len(part) >= minPath {
					add(part)
				}
			}
		}
		for name, values := range u.Query() {
			if strings.HasPrefix(u.Scheme, "postgres") && !strings.Contains(name, "pass") {
				continue
			}
			for _, v := range values {
				add(v)
			}
		}
	}
	// Of two secrets at one place the longer is replaced, so that nothing of it is left.
	order := make([]string, 0, len(found))
	for secret := range found {
		order = append(order, secret)
	}
	slices.SortFunc(order, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	pairs := make([]string, 0, 2*len(order))
	for _, secret := range order {
		pairs = append(pairs, secret, found[secret])
	}
	return &Secrets{replace: strings.NewReplacer(pairs...)}
}

// Mask returns text without the secrets. Nil Secrets mask nothing.
func (s *Secrets) Mask(text string) string {
	if s == nil {
		return text
	}
	return s.replace.Replace(text)
}

// Error masks the secrets in an error's text. errors.Is and errors.As go on to find what it wraps.
func (s *Secrets) Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if u, ok := errors.AsType[*url.Error](err); ok {
		text = strings.ReplaceAll(text, u.URL, URL(u.URL))
	}
	text = s.Mask(text)
	if text == err.Error() {
		return err
	}
	return &masked{text: text, err: err}
}

// Error masks an error's text: the URL of an *url.Error, and the secrets of the URLs and connection strings given.
func Error(err error, secrets ...string) error { return New(secrets...).Error(err) }

type masked struct {
	text string
	err  error
}

func (e *masked) Error() string { return e.text }
func (e *masked) Unwrap() error { return e.err }
