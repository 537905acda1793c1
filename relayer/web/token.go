package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenCheckEvery is how often the token's file is checked: a rotation takes effect within that
// time.
const tokenCheckEvery = time.Second

// minToken is the shortest accepted token: shorter ones can be guessed.
const minToken = 16

// isProbe reports whether a path is open to all: a platform's probes carry no token.
func isProbe(path string) bool {
	chain, ofChain := strings.CutPrefix(path, "/readyz/")
	return path == "/healthz" || path == "/readyz" || ofChain && chain != "" && strings.Trim(chain, "0123456789") == ""
}

// token is a secret in a file that a request must carry. It is read again when the file changes,
// and safe for concurrent use.
type token struct {
	path string
	now  func() time.Time

	mu      sync.Mutex
	looked  time.Time
	changed time.Time // of the file, as of the last reading
	size    int64
	sum     [sha256.Size]byte // of the token, so that a comparison takes as long for every length
}

// CheckToken reports why the file of a token cannot be used.
func CheckToken(path string) error {
	_, err := openToken(path, time.Now)
	return err
}

// openToken reads the file for the first time.
func openToken(path string, now func() time.Time) (*token, error) {
	t := &token{path: path, now: now}
	if err := t.read(); err != nil {
		return nil, err
	}

	return t, nil
}

// read reads the token from a changed file.
func (t *token) read() error {
	info, err := os.Stat(t.path)
	if err != nil {
		return fmt.Errorf("HTTP_TOKEN_FILE: %w: name a file that can be read", err)
	}

	if info.ModTime().Equal(t.changed) && info.Size() == t.size {
		return nil
	}

	text, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("HTTP_TOKEN_FILE: %w: name a file that can be read", err)
	}

	secret := strings.TrimSpace(string(text))
	if len(secret) < minToken {
		return fmt.Errorf("HTTP_TOKEN_FILE=%s: the token has %d characters: give it %d or more", t.path,
			len(secret), minToken)
	}

	t.changed, t.size, t.sum = info.ModTime(), info.Size(), sha256.Sum256([]byte(secret))

	return nil
}

// admits reports whether a request carries the token: as a bearer, or as the password of any user.
// While the file is unreadable the last token stays in force.
func (t *token) admits(r *http.Request) bool {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") { // RFC 9110: a scheme is written in any case
		_, given, _ = r.BasicAuth()
	}

	t.mu.Lock()
	if now := t.now(); now.Sub(t.looked) >= tokenCheckEvery {
		t.looked = now
		_ = t.read()
	}

	want := t.sum
	t.mu.Unlock()

	sum := sha256.Sum256([]byte(given))

	return subtle.ConstantTimeCompare(sum[:], want[:]) == 1
}

// Guard makes a handler, also one of another server such as that of commands, require the token, if
// there is one, except for the probes. Without a token it refuses requests that a page of another
// site could have sent.
func (f *Front) Guard(next http.Handler) http.Handler {
	if f.token == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isProbe(r.URL.Path) && rebound(r) {
				writeProblem(w, http.StatusMisdirectedRequest,
					"from this machine, ask for localhost or an IP address; another name needs HTTP_TOKEN_FILE")
				return
			}

			next.ServeHTTP(w, r)
		})
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isProbe(r.URL.Path) || f.token.admits(r) {
			next.ServeHTTP(w, r)
			return
		}

		w.Header().Set("WWW-Authenticate", `Basic realm="escrow relayer", charset="UTF-8"`)
		writeProblem(w, http.StatusUnauthorized,
			"this needs the token of HTTP_TOKEN_FILE: as Authorization: Bearer, or as a password")
	})
}

// rebound reports whether a request comes from this machine but names another host: a browser sends
// such a request for a page of another site with a name that resolves to 127.0.0.1 (DNS rebinding), and
// that page could read the answer.
func rebound(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return false
	}

	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}

	host = strings.ToLower(strings.Trim(strings.TrimSuffix(host, "."), "[]"))
	_, err = netip.ParseAddr(host)

	return err != nil && host != "localhost" && !strings.HasSuffix(host, ".localhost")
}
