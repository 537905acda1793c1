package testpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/internal/port"
)

const (
	// startTimeout bounds one start or stop of the server: pg_ctl's -t, in seconds. A start takes half a second on an idle
	// machine; crash recovery and a loaded CI runner take longer.
	startTimeout = "300"
	// callTimeout bounds a call of Stop whose context has no deadline.
	callTimeout = 6 * time.Minute
)

// Options of a server. The zero value suits tests.
type Options struct {
	// Durable switches fsync and full_page_writes on and keeps the files on disk. Zero: off, in memory
	// where that is possible, which loses data on a power cut, though not when the server is killed: a
	// commit is handed to the operating system before it is told. Benchmarks want it on.
	Durable bool
	// MaxConnections of the server. Zero means 200.
	MaxConnections int
	// Settings are further lines of postgresql.conf, by name, and win over the ones above.
	Settings map[string]string

	copyOf string // the data folder of the server that it is a standby of; empty: none
}

// Server is a running Postgres. Its methods may be called concurrently, except Down, Up and Stop, which belong to one
// goroutine.
type Server struct {
	base   url.URL // of the maintenance database
	bin    string  // folder of the binaries
	dir    string  // holds the folder "data", the file "log" and nothing else
	port   *port.Reserved
	reaper *exec.Cmd
	leash  *os.File // the reaper acts when this is closed, by Stop or by the end of this process

	template struct {
		mu   sync.Mutex
		made bool
	}
}

// Start starts a server on a free loopback port, with a data folder of its own, and returns when it
// accepts connections. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	bin, err := binaries(ctx)
	if err != nil {
		return nil, err
	}

	return open(bin, o.Durable, func(s *Server) error { return s.start(ctx, o) })
}

// open makes a server's folder, which goes with this process, and has it filled.
func open(bin string, durable bool, fill func(*Server) error) (*Server, error) {
	parent := ""
	if !durable && os.Getenv("TMPDIR") == "" {
		parent = inMemory()
	}

	dir, err := os.MkdirTemp(parent, "escrow-relayer-pg-")
	if err != nil {
		return nil, fmt.Errorf("make the server's folder: %w", err)
	}

	s := &Server{bin: bin, dir: dir}
	if err = giveAway(dir); err != nil {
		err = fmt.Errorf("give %s to the server's user: %w", dir, err)
	} else if err = s.watch(); err != nil {
		err = fmt.Errorf("start the process that ends the server: %w", err)
	} else {
		err = fill(s)
	}

	if err != nil {
		return nil, errors.Join(err, s.Stop(context.Background()), os.RemoveAll(dir))
	}

	return s, nil
}

// Standby starts a second server that follows this one. Every commit waits for it, as where a failover may lose
// nothing (Postgres manual, Synchronous Replication). It is read-only until Promote. The server is down
// meanwhile: the standby begins with a copy of its files, since pg_basebackup is not everywhere where the server
// is. The caller stops both.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	const name = "standby"
	if err := s.exec(ctx, `alter system set synchronous_standby_names = `+name); err != nil { // from Up on
		return nil, err
	}

	if err := s.Down(ctx, Fast); err != nil {
		return nil, err
	}

	source := s.base
	source.RawQuery += "&application_name=" + name
	b, err := Start(ctx, Options{copyOf: s.data(),
		Settings: map[string]string{"primary_conninfo": source.String()}})
	if err != nil {
		return nil, err
	}

	if err := s.Up(ctx); err != nil {
		return nil, errors.Join(err, b.Stop(context.WithoutCancel(ctx)))
	}

	return b, nil
}

// Promote makes a standby a primary, and returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	return s.run(ctx, "pg_ctl", "promote", "--pgdata", s.data(), "--wait", "--timeout", startTimeout)
}

func (s *Server) start(ctx context.Context, o Options) error {
	if err := s.fill(ctx, o.copyOf); err != nil {
		return err
	}

	var err error
	if s.port, err = port.Reserve(); err != nil {
		return err
	}

	if err := os.WriteFile(filepath.Join(s.data(), "postgresql.auto.conf"), o.conf(s.port.Number), 0o600); err != nil {
		return fmt.Errorf("write the server's settings: %w", err)
	}

	s.base = url.URL{Scheme: "postgres", User: url.User("postgres"), Host: s.port.Addr(), Path: "/postgres",
		RawQuery: "sslmode=disable"}

	return s.Up(ctx)
}

// fill makes the data folder: that of a new server, or of a standby.
func (s *Server) fill(ctx context.Context, copyOf string) error {
	if copyOf != "" {
		if err := s.copy(ctx, copyOf); err != nil {
			return err
		}

		return os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o600)
	}

	p, err := pristine(ctx, s.bin)
	switch {
	case err != nil:
		return err
	case p == nil:
		return s.initdb(ctx)
	}

	return s.copy(ctx, p.data())
}

// first has what a process's servers begin with a copy of, from the second on: initdb takes a second of processor time,
// a copy a tenth of that. It goes with the process.
var first struct {
	mu       sync.Mutex
	servers  int
	pristine *Server
}

// pristine is a folder to copy; nil for the first server of a process: the demo has one.
func pristine(ctx context.Context, bin string) (p *Server, err error) {
	first.mu.Lock()
	defer first.mu.Unlock()
	first.servers++
	if first.servers > 1 && first.pristine == nil {
		first.pristine, err = open(bin, false, func(p *Server) error { return p.initdb(ctx) })
	}

	return first.pristine, err
}

func (s *Server) initdb(ctx context.Context) error {
	return s.run(ctx, "initdb", "--pgdata", s.data(), "--username", "postgres", "--auth", "trust", "--encoding", "UTF8",
		"--no-locale", "--no-sync", "--no-instructions")
}

func (s *Server) copy(ctx context.Context, data string) error {
	return s.run(ctx, "/bin/cp", "-Rp", data, s.data())
}

// conf is the whole of postgresql.auto.conf, which overrules postgresql.conf.
func (o Options) conf(number int) []byte {
	onOff := map[bool]string{true: "on", false: "off"}[o.Durable]
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    fmt.Sprint(number),
		"unix_socket_directories": "", // a socket's path may not be longer than 107 bytes, and a temporary folder's often is
		"max_connections":         fmt.Sprint(cmp.Or(o.MaxConnections, 200)),
		"fsync":                   onOff,
		"full_page_writes":        onOff,
		"shared_buffers":          "128MB",
		// no checkpoint in the middle of a benchmark
		"max_wal_size":    map[bool]string{true: "4GB", false: "512MB"}[o.Durable],
		"log_line_prefix": "%m [%p] %a %d ",
		"timezone":        "UTC",
		"log_timezone":    "UTC",
	}
	maps.Copy(settings, o.Settings)

	var lines []string
	for name, value := range settings {
		lines = append(lines, fmt.Sprintf("%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''")))
	}

	slices.Sort(lines)

	return []byte(strings.Join(lines, ""))
}

// watch starts the process that ends the server and removes its folder once the leash is closed.
// The kernel closes it when this process ends in whatever way, which a deferred function or a
// signal handler could not promise, and unlike a parent-death signal that works on every Unix and
// removes the files too.
func (s *Server) watch() error {
	// Paths come by the environment: beside "rm", a list of processes must not show a folder of programs.
	const script = `cat >/dev/null; "$PROGRAMS/pg_ctl" stop -D "$FOLDER/data" -m immediate -w -t 10; rm -rf "$FOLDER"`
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}

	cmd := exec.Command("/bin/sh", "-c", script, "escrow-relayer: cleans up after Postgres")
	cmd.Dir, cmd.SysProcAttr = "/", attributes()
	cmd.Env = append(environment(), "PROGRAMS="+s.bin, "FOLDER="+s.dir)
	cmd.Stdin = read
	if err := errors.Join(cmd.Start(), read.Close()); err != nil {
		return errors.Join(err, write.Close())
	}

	s.reaper, s.leash = cmd, write

	return nil
}

// Stop ends the server (after a fast shutdown) and removes its files.
func (s *Server) Stop(ctx context.Context) error {
	if s.reaper == nil {
		return nil
	}

	if _, err := os.Stat(filepath.Join(s.data(), "postmaster.pid")); err == nil {
		if err := s.Down(ctx, Fast); err != nil && ctx.Err() == nil {
			return err // the reaper still ends it, at the latest when this process does
		}
	}

	err := errors.Join(s.leash.Close(), s.reaper.Wait(), s.port.Close())
	s.reaper = nil
	if err != nil {
		return fmt.Errorf("remove the server's files: %w", err)
	}

	return nil
}

// Mode is a way to shut down.
type Mode string

// How a server stops.
const (
	Fast      Mode = "fast"      // sessions are ended, everything is written
	Immediate Mode = "immediate" // as if it had crashed: the next start recovers from the log
)

// Down shuts the server down and returns when it is gone. Connections are refused until Up.
func (s *Server) Down(ctx context.Context, mode Mode) error {
	return s.run(ctx, "pg_ctl", "stop", "--pgdata", s.data(), "--mode", string(mode), "--wait", "--timeout", startTimeout)
}

// Up starts the server again on the port it had, and returns when it accepts connections.
func (s *Server) Up(ctx context.Context) error {
	return s.run(ctx, "pg_ctl", "start", "--pgdata", s.data(), "--log", filepath.Join(s.dir, "log"), "--wait",
		"--timeout", startTimeout)
}

// URL of a database of this server.
func (s *Server) URL(database string) string {
	u := s.base
	u.Path = "/" + database
	return u.String()
}

// CreateDatabase makes a database, as a copy of template unless that is empty. Nobody may be connected to the template.
func (s *Server) CreateDatabase(ctx context.Context, name, template string) error {
	sql := "create database " + pgx.Identifier{name}.Sanitize()
	if template != "" {
		sql += " template " + pgx.Identifier{template}.Sanitize() + s.copying()
	}

	return s.exec(ctx, sql)
}

// copying has a database copied by files, as all versions do up to 14: to write each page to the log, as the newer
// ones do unless told, takes four times as long.
func (s *Server) copying() string {
	version, err := os.ReadFile(filepath.Join(s.data(), "PG_VERSION"))
	if major, _ := strconv.Atoi(strings.TrimSpace(string(version))); err != nil || major < 15 {
		return ""
	}

	return " strategy file_copy"
}

// DropDatabase drops a database if it exists, ending whatever sessions it has.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	return s.exec(ctx, "drop database if exists "+pgx.Identifier{name}.Sanitize()+" with (force)")
}

// exec runs one statement that cannot be part of a transaction in the maintenance database.
func (s *Server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.base.String())
	if err != nil {
		return fmt.Errorf("connect to the maintenance database: %w", err)
	}

	_, err = conn.Exec(ctx, sql)
	if err != nil {
		err = fmt.Errorf("%s: %w", sql, err)
	}

	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// run runs one of Postgres's programs as the server's user; what it printed, and the end of the
// server's log, are in the error.
func (s *Server) run(ctx context.Context, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if !filepath.IsAbs(program) {
		program = filepath.Join(s.bin, program)
	}

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", environment(), attributes()
	// A file, not a buffer: the server inherits it, and a pipe would be read until the server ends.
	out, err := os.CreateTemp("", "escrow-relayer-pg-out-")
	if err != nil {
		return fmt.Errorf("run %s: %w", program, err)
	}

	defer func() { _, _ = out.Close(), os.Remove(out.Name()) }()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		logged, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		return fmt.Errorf("run %s %s: %w\n%s\n%s", program, args[0], err, said, logged[max(0, len(logged)-2000):])
	}

	return nil
}

// environment of Postgres's programs: nothing of ours, since PGOPTIONS and the like would change the server.
func environment() []string {
	return []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
}
