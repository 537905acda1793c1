package database

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Explained is an error of the database in plain words, with the operator's remedy. Its text is
// free of passwords and URLs.
type Explained struct {
	// What is wrong.
	What string
	// Remedy is the first thing to do.
	Remedy string
	// Lasting reports that a retry cannot help: a person must change a setting or a right.
	Lasting bool

	cause error
}

func (e *Explained) Error() string { return e.What + ": " + e.Remedy }

// Advice is the error in two parts, for screens that show the remedy separately.
func (e *Explained) Advice() (what, remedy string) { return e.What, e.Remedy }

// Unwrap returns the driver's error.
func (e *Explained) Unwrap() error { return e.cause }

// ErrNoSchema means that the database lacks our tables: migrations are still to run.
var ErrNoSchema = errors.New("the database has no schema")

// Explain translates an error of the database into plain words for operators. An unknown error is
// returned unchanged.
func Explain(err error) error {
	if err == nil || errors.As(err, new(*Explained)) || errors.Is(err, context.Canceled) {
		return err
	}

	var e *Explained
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		e = explainServer(pg)
	} else if connect := new(pgconn.ConnectError); errors.As(err, &connect) {
		e = explainConnection(connect)
	}

	if e == nil {
		return err
	}

	if e.cause = err; pg != nil && pg.Code == undefinedTable {
		e.cause = fmt.Errorf("%w: %w", ErrNoSchema, err)
	}

	return e
}

// Within asks the database, for so long at most, and explains an error. Whatever the driver says of an attempt that
// took longer, in words that depend on where it was: the database has not answered.
func Within(ctx context.Context, limit time.Duration, ask func(context.Context) error) error {
	silent := &Explained{What: fmt.Sprintf("the database has not answered within %s", limit),
		Remedy: "look at it, and at the network between", cause: context.DeadlineExceeded}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, silent)
	defer cancel()
	err := ask(ctx)
	if err != nil && context.Cause(ctx) == error(silent) { //nolint:errorlint // this one, and no wrapping of it
		return silent
	}

	return Explain(err)
}

// undefinedTable is the server's code for a table that does not exist.
const undefinedTable = "42P01"

// Lasting reports whether err is an Explained for which a retry cannot help.
func Lasting(err error) bool {
	e := new(Explained)
	return errors.As(err, &e) && e.Lasting
}

// remedy is the response to an answer of the server.
type remedy struct {
	text    string
	lasting bool
}

// remedies are by the server's code (https://www.postgresql.org/docs/current/errcodes-appendix.html).
var remedies = map[string]remedy{
	"28P01": {"correct the user or the password in DATABASE_URL", true},
	"28000": {"correct the user in DATABASE_URL, or let pg_hba.conf admit this host and user", true},
	"3D000": {"correct the name at the end of DATABASE_URL, or create the database", true},
	"42501": {"grant the user of DATABASE_URL that right, or use another user", true},
	"25006": {"DATABASE_URL leads to a read-only replica, or its user has default_transaction_read_only=on: " +
		"name the primary, or a user who may write", false},
	"53300": {"lower DB_MAX_CONNS or TOTAL_PARTITIONS, or raise the server's max_connections", false},
	"57P03": {"it is starting or recovering: wait", false},
	"57P01": {"the server is being shut down or failing over: wait", false},
	"57P02": {"the server is being shut down or failing over: wait", false},
	"42P05": {pooled, true},
	"26000": {pooled, false},
	"53100": {"the disk of the database is full: make room", false},
}

// pooled is the remedy where another server session has what was prepared.
const pooled = "DATABASE_URL leads through a pool of transactions: set SESSION_DATABASE_URL to the address of Postgres " +
	"itself, and nothing is prepared through the pool"

// explainServer explains what the server answered.
func explainServer(pg *pgconn.PgError) *Explained {
	if pg.Code == undefinedTable || pg.Code == "3F000" {
		return &Explained{What: fmt.Sprintf("%s (%s)", ErrNoSchema, pg.Message),
			Remedy: "run `escrow-relayer migrate`, or start an instance " +
				"with MIGRATE_ON_START=true; if it was migrated, compare the database and the search_path of DATABASE_URL",
			Lasting: true}
	}

	r, known := remedies[pg.Code]
	if !known {
		return nil
	}

	if pg.Code == "28000" && strings.Contains(pg.Message, "no encryption") {
		r.text = "it may ask for TLS: add sslmode=require to DATABASE_URL; or let pg_hba.conf admit this host and user"
	}

	return &Explained{What: "the database says: " + pg.Message, Remedy: r.text, Lasting: r.lasting}
}

// httpAnswer matches the driver's errors when an HTTP server answers: it reads the first bytes,
// "HTTP/", as a message's type H and its length.
var httpAnswer = regexp.MustCompile(`invalid (body|message) (body )?length.* 14148116\d\d|unknown message type: H|received unexpected message`)

// explainConnection explains a failure to connect.
func explainConnection(e *pgconn.ConnectError) *Explained {
	c := e.Config
	where := net.JoinHostPort(c.Host, fmt.Sprint(c.Port))
	if strings.HasPrefix(c.Host, "/") {
		where = c.Host
	}

	text := e.Error()

	var dns *net.DNSError
	var unknownAuthority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case strings.Contains(text, "server refused TLS connection"):
		return &Explained{What: "the database at " + where + " has no TLS, and DATABASE_URL asks for it",
			Remedy:  "set sslmode=disable in DATABASE_URL if the network is private, or switch TLS on in the server",
			Lasting: true}
	case errors.As(e, &unknownAuthority), errors.As(e, &hostname), errors.As(e, &invalid):
		return &Explained{What: "the certificate of the database at " + where + " is not accepted (" + certificate(e) + ")",
			Remedy: "name its authority by sslrootcert in DATABASE_URL, and the host that the certificate is for", Lasting: true}
	case errors.As(e, &record), strings.Contains(text, "tls:"):
		return &Explained{What: "no TLS connection to the database at " + where,
			Remedy: "compare sslmode in DATABASE_URL with what the server offers"}
	case httpAnswer.MatchString(text):
		return &Explained{What: where + " does not answer as Postgres does",
			Remedy: "correct host and port in DATABASE_URL", Lasting: true}
	case errors.As(e, &dns):
		return &Explained{What: fmt.Sprintf("the host %q of the database is not known", dns.Name),
			Remedy: "correct the host in DATABASE_URL, or the DNS"}
	case errors.Is(e, syscall.ECONNREFUSED):
		return &Explained{What: "nothing accepts connections at " + where,
			Remedy: "start the database, whose log says why it ended, or correct host and port in DATABASE_URL"}
	case errors.Is(e, os.ErrNotExist):
		return &Explained{What: "there is no socket of Postgres in " + where,
			Remedy: "start the database, or correct the host in DATABASE_URL"}
	case errors.Is(e, context.DeadlineExceeded), errors.Is(e, os.ErrDeadlineExceeded),
		strings.Contains(text, "timeout"), errors.Is(e, net.ErrClosed): // by Renew, as the session was lost meanwhile
		return &Explained{What: "the database at " + where + " does not answer",
			Remedy: "look at the network and the firewall between here and the database, and at the host in DATABASE_URL"}
	case errors.Is(e, syscall.EHOSTUNREACH), errors.Is(e, syscall.ENETUNREACH):
		return &Explained{What: "there is no route to the database at " + where,
			Remedy: "look at the network, and at the host in DATABASE_URL"}
	case errors.Is(e, syscall.ECONNRESET), strings.Contains(text, "unexpected EOF"), strings.HasSuffix(text, "EOF"):
		return &Explained{What: "the connection to the database at " + where + " is closed at once",
			Remedy: "look at the server's log; if there is a proxy in between, look whether it reaches the database"}
	}

	return nil
}

// certificate describes the problem of a server's certificate.
func certificate(e error) string {
	if verification, ok := errors.AsType[*tls.CertificateVerificationError](e); ok {
		return verification.Err.Error()
	}

	return "not verified"
}
