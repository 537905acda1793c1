// Package redact keeps credentials out of errors and logs: keys in RPC URLs and passwords in connection strings.
package redact

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const mask = "***"

// URL shows a URL's scheme and host, without possible keys: user, path, query, and host names below
// the registered domain, which some providers create per customer. Of an ambiguous URL, such as one
// with an @ in its password, it shows at most the scheme. It always succeeds.
func URL(raw string) string {
	raw = strings.TrimSpace(raw)
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return mask
	}

	authority, _, _ := strings.Cut(raw, "://")
	authority = raw[min(len(raw), len(authority)+3):]
	if end := strings.IndexAny(authority, "/?#"); end >= 0 {
		authority = authority[:end]
	}

	if strings.Count(raw, "@") != strings.Count(authority, "@") || strings.Count(raw, "@") > 1 {
		return u.Scheme + "://" + mask // the host is ambiguous
	}

	host := shownHost(u.Hostname())
	if port := u.Port(); port != "" {
		host += ":" + port
	}

	return u.Scheme + "://" + host
}

// shownHost is a host name without labels below the registered domain. An invalid host name is
// hidden.
func shownHost(host string) string {
	if net.ParseIP(host) != nil {
		if strings.Contains(host, ":") {
			return "[" + host + "]"
		}

		return host
	}

	if strings.ContainsFunc(host, foreign) {
		return mask
	}

	if labels := strings.Split(host, "."); len(labels) > 2 {
		return mask + "." + strings.Join(labels[len(labels)-2:], ".")
	}

	return host
}

func foreign(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._", r)
}

// Secrets masks the secrets of a set of URLs and connection strings. It is immutable.
type Secrets struct {
	find  *regexp.Regexp    // any of the secrets, in any case; nil: there are none
	shown map[string]string // by secret in lower case
}

var keyword = regexp.MustCompile(`(?i)(?:password|sslpassword|passfile)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:\\.|\S)+))`)

// escaped is a character that libpq takes literally in a keyword's value.
var escaped = regexp.MustCompile(`\\(.)`)

// collector gathers secrets and what is shown for each.
type collector map[string]string

// secret adds a text that is secret wherever it occurs.
func (c collector) secret(text string) {
	if len(text) < 3 { // masking a single letter would reveal its places
		return
	}

	for _, form := range forms(text) {
		c.replace(form, mask)
	}
}

// hide adds a secret of a URL: a password of Postgres, or a part that an endpoint's provider
// invented.
func (c collector) hide(postgres bool, text string) {
	if postgres {
		c.password(text)
	} else {
		c.secret(text)
	}
}

// password adds a password. A plain word is masked only in the place of a password: masked
// everywhere, it would make texts unreadable, and the gaps would reveal it.
func (c collector) password(text string) {
	if !plainWord(text) {
		c.secret(text)
		return
	}

	c.replace(":"+text+"@", ":"+mask+"@")
	for _, name := range []string{"password", "sslpassword"} {
		for _, quote := range []string{"", "'", `"`} {
			c.replace(name+"="+quote+text, name+"="+quote+mask)
		}
	}
}

// plainWord reports whether a text consists of a few letters only, like a word of a language.
func plainWord(text string) bool {
	return !keyLike(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) })
}

// Weak reports whether the password of a connection string can be guessed, or looks like an
// ordinary word in a text.
func Weak(connection string) bool {
	u, err := url.Parse(connection)
	if err != nil || u.User == nil {
		return false
	}

	password, set := u.User.Password()

	return set && (plainWord(password) || password == u.User.Username() || len(password) < minPassword)
}

// minPassword is the length, in characters, below which a password is found by trying.
const minPassword = 12

// forms of a text: as part of a URL, where a plus may be a space, and as errors and JSON quote it.
func forms(text string) (list []string) {
	plain := []string{text}
	for _, decode := range []func(string) (string, error){url.PathUnescape, url.QueryUnescape} {
		if decoded, err := decode(text); err == nil && !slices.Contains(plain, decoded) {
			plain = append(plain, decoded)
		}
	}

	for _, p := range plain {
		for _, form := range []string{p, url.QueryEscape(p), url.PathEscape(p)} {
			quoted := strconv.Quote(form)
			inJSON, _ := json.Marshal(form) // never fails for a text
			list = append(list, form, quoted[1:len(quoted)-1], string(inJSON[1:len(inJSON)-1]))
		}
	}

	return list
}

func (c collector) replace(text, shown string) {
	if text != "" {
		c[strings.ToLower(text)] = shown
	}
}

// keyLike reports whether a word may be a key: long, or with digits among letters. Masking plain
// words too, such as the name of a network or a user, would make texts unreadable.
func keyLike(word string) bool {
	digits := strings.ContainsAny(word, "0123456789")
	return len(word) >= 16 || digits && len(word) >= 5
}

// New collects the secrets of URLs and of Postgres connection strings in either form.
func New(raw ...string) *Secrets {
	found := collector{}
	for _, r := range raw {
		if r = strings.TrimSpace(r); r == "" {
			continue
		}

		scheme, rest, isURL := strings.Cut(r, "://")
		if !isURL {
			for _, m := range keyword.FindAllStringSubmatch(r, -1) {
				found.password(m[1] + m[2])
				found.password(escaped.ReplaceAllString(m[1]+m[2], "$1"))
			}

			found.replace(r, mask)

			continue
		}

		postgres := strings.HasPrefix(strings.ToLower(scheme), "postgres")
		whole := forms(r)
		if u, err := url.Parse(r); err == nil {
			whole = append(whole, u.String(), u.Redacted())
			if u.User != nil && !postgres {
				found.header(u.User)
			}
		}

		for _, form := range whole {
			found.replace(form, URL(r))
		}

		found.url(postgres, rest)
	}

	return found.done()
}

// header collects a client's Authorization header for user and password.
func (c collector) header(u *url.Userinfo) {
	password, _ := u.Password()
	c.replace(base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)), mask)
}

// url collects the secrets of the part after a URL's scheme. It splits the text without a URL
// parser: a password may contain the characters that end the authority, and a parser would take one
// half of it for a host and the other for a path. So everything before the last @ counts as user
// and password too.
func (c collector) url(postgres bool, rest string) {
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		user := rest[:at]
		name, password, split := strings.Cut(user, ":")
		switch {
		case split:
			c.replace(user, mask)
			c.hide(postgres, password)
			for _, hidden := range []string{"***", "xxxxx", "xxxxxx"} { // as net/http, net/url and pgx hide it
				if !postgres {
					c.replace(name+":"+hidden+"@", mask+"@")
				}
			}
		case !postgres || strings.ContainsAny(user, "?#/@"):
			c.replace(user+"@", mask+"@")
			if keyLike(name) {
				c.secret(name) // the user of a URL of an endpoint is a token
			}
		}

		for _, part := range strings.FieldsFunc(user, func(r rune) bool { return strings.ContainsRune(":?#/@&=", r) }) {
			if part != name && len(part) > 3 || !postgres && keyLike(part) {
				c.hide(postgres, part)
			}
		}
	}

	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}

	host := authority[strings.LastIndex(authority, "@")+1:]
	name, _, _ := strings.Cut(host, ":")
	if labels := strings.Split(name, "."); len(labels) > 2 && net.ParseIP(name) == nil {
		c.replace(name, shownHost(name))
		for i, part := range strings.FieldsFunc(name, foreign) {
			if i > 0 {
				c.secret(part)
			}
		}

		for _, label := range labels[:len(labels)-2] {
			if keyLike(label) {
				c.secret(label)
			}
		}
	}

	c.path(postgres, rest[len(authority):])
}

// secretNames match the names of values that are secret in any form.
var secretNames = regexp.MustCompile(`(?i)key|token|secret|auth|pass|sig|pwd`)

// path collects the secrets of a URL's path, query and fragment.
func (c collector) path(postgres bool, text string) {
	path, query, _ := strings.Cut(text, "?")
	if !postgres && len(path) > 8 {
		c.replace(path, "/"+mask)
	}

	plain, err := url.PathUnescape(text)
	if err != nil {
		plain = ""
	}

	between := func(r rune) bool { return strings.ContainsRune("/?#&=;,:@", r) }
	for _, part := range strings.FieldsFunc(text+"/"+plain, between) {
		if keyLike(part) && !postgres {
			c.secret(part)
		}
	}

	for _, pair := range strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == '#' }) {
		if name, value, ok := strings.Cut(pair, "="); ok && secretNames.MatchString(name) {
			c.hide(postgres, value)
		}
	}
}

// done builds the mask. Of two secrets at one place the longer is replaced, so that all of it is
// hidden.
func (c collector) done() *Secrets {
	if len(c) == 0 {
		return &Secrets{}
	}

	order := slices.SortedFunc(maps.Keys(c), func(a,
		b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	})
	for i, secret := range order {
		order[i] = regexp.QuoteMeta(secret)
	}

	return &Secrets{find: regexp.MustCompile("(?i)" + strings.Join(order, "|")), shown: c}
}

// Mask returns text without the secrets. Nil Secrets mask nothing.
func (s *Secrets) Mask(text string) string {
	if s == nil || s.find == nil || !s.has(text) {
		return text
	}

	return s.find.ReplaceAllStringFunc(text, func(found string) string {
		if shown, ok := s.shown[strings.ToLower(found)]; ok {
			return shown
		}

		return mask
	})
}

// has reports whether a text contains a secret. Most texts have none, and searching for each secret
// is much faster than the expression that finds any.
func (s *Secrets) has(text string) bool {
	text = strings.ToLower(text)
	for secret := range s.shown {
		if strings.Contains(text, secret) {
			return true
		}
	}

	return false
}

// Error masks the secrets in an error's text. errors.Is and errors.As still find what it wraps.
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

type masked struct {
	text string
	err  error
}

func (e *masked) Error() string { return e.text }
func (e *masked) Unwrap() error { return e.err }

// Printable replaces control characters: the texts of rows, nodes and sessions must not move a
// terminal's cursor, and no page of HTML may contain them.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '\uFFFD'
		}

		return r
	}, text)
}
