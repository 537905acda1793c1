package config

import (
	"cmp"
	"net/url"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

func (l *loader) database() {
	c := l.c
	between(l, "DB_MAX_CONNS", c.DBMaxConns, 4, 1000,
		": commits, the publisher and the HTTP server use connections at once")
	if c.CloudSQLInstance != "" && !cloudSQL.MatchString(c.CloudSQLInstance) {
		l.say("CLOUDSQL_INSTANCE", "must be an instance connection name: project:region:instance")
	}

	if c.CloudSQLIAM && c.CloudSQLInstance == "" {
		l.say("CLOUDSQL_INSTANCE", "is needed with CLOUDSQL_IAM_AUTH=true")
	}

	if c.DatabaseURL == "" {
		l.say("DATABASE_URL", "is missing; set it to postgres://user:password@host/database, in quotes where a shell reads it: & ends it there")
	}

	c.DatabaseURL = l.connection("DATABASE_URL", c.DatabaseURL)
	c.SessionDatabaseURL = cmp.Or(l.connection("SESSION_DATABASE_URL", c.SessionDatabaseURL), c.DatabaseURL)
}

var cloudSQL = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]*:[a-z0-9-]+:[a-z0-9-]+$`)

// connection checks a URL or DSN, and returns it in pgx's form.
func (l *loader) connection(variable, raw string) string {
	if raw == "" {
		return ""
	}

	if quoted.MatchString(raw) {
		l.say(variable, "is in quotes, which a file that no shell reads keeps: leave them out")
		return raw
	}

	if why := ambiguous(raw, true); why != "" {
		l.say(variable, "%s, so that a client takes a piece of the password for something else: percent-encode it; %s", why, escapes)
		return raw
	}

	raw = standard(raw)
	conn, err := pgx.ParseConfig(raw) // the error quotes the URL
	if err != nil {
		l.say(variable, "is not a Postgres URL or DSN, or names a certificate that cannot be read; "+
			"a URL is postgres://user:password@host/database; %s", escapes)
		return raw
	}

	if strings.ContainsAny(conn.Host, "@#?") {
		l.say(variable, "has a host with a character that no host has: %s", escapes)
	}

	for name := range conn.RuntimeParams {
		if strings.HasPrefix(name, "pool_") {
			l.say(variable, "%s is not known here; DB_MAX_CONNS sets the size of the pool", name)
		}
	}

	if l.c.CloudSQLIAM && strings.HasSuffix(conn.User, ".gserviceaccount.com") {
		l.say(variable, "with CLOUDSQL_IAM_AUTH the user is the service account without .gserviceaccount.com: %s",
			strings.TrimSuffix(conn.User, ".gserviceaccount.com"))
	}

	return raw
}

// ambiguous says which character a URL has where it divides the URL anew: what follows it would go to
// another place, such as the DNS server. Empty: it has none, or is no URL. The path of a database has
// one segment.
func ambiguous(raw string, database bool) string {
	_, rest, isURL := strings.Cut(raw, "://")
	authority, tail := rest, ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority, tail = rest[:end], rest[end:]
	}

	path, _, _ := strings.Cut(tail, "?")
	switch {
	case !isURL:
		return ""
	case strings.Count(authority, "@") > 1 || strings.Contains(tail, "@"):
		return "has an unescaped @"
	case strings.Contains(tail, "#"):
		return "has an unescaped #"
	case database && strings.Count(path, "/") > 1:
		return "has an unescaped /"
	}

	return ""
}

// quoted matches a value that includes its quotes.
var quoted = regexp.MustCompile("^[\"'`]|[\"'`]$")

// escapes explains how to write a password in a URL.
const escapes = "in the password write @ : / ? # % & as %40 %3A %2F %3F %23 %25 %26"

// dialect is the beginning of a URL in which SQLAlchemy names a driver: postgresql+asyncpg://.
var dialect = regexp.MustCompile(`^postgres(ql)?\+[a-z0-9]+://`)

// driverOnly are parameters for asyncpg and SQLAlchemy, which the server would refuse.
var driverOnly = []string{"ssl", "prepared_statement_cache_size", "prepared_statement_name_func",
	"statement_cache_size", "max_cached_statement_lifetime", "command_timeout", "timeout", "async_fallback"}

// standard turns a URL of SQLAlchemy into one for every client: without the driver in its scheme,
// and with `sslmode` instead of asyncpg's `ssl`.
func standard(raw string) string {
	prefix := dialect.FindString(raw)
	if prefix == "" {
		return raw
	}

	raw = "postgresql://" + raw[len(prefix):]
	u, err := url.Parse(raw)
	if err != nil || u.RawQuery == "" {
		return raw
	}

	q := u.Query()
	switch mode := q.Get("ssl"); strings.ToLower(mode) {
	case "":
	case "true", "1":
		q.Set("sslmode", "require")
	case "false", "0":
		q.Set("sslmode", "disable")
	default:
		q.Set("sslmode", mode)
	}

	for _, name := range driverOnly {
		q.Del(name)
	}

	u.RawQuery = q.Encode()

	return u.String()
}
