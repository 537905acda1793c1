package testpg

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("TESTPG_CHILD") != "" { // see TestServerEndsWithItsProcess
		s, err := Start(context.Background(), Options{})
		fmt.Println(s.dir, s.URL("postgres"), err)
		_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed

		return
	}

	goleak.VerifyTestMain(m)
}

func TestEveryTestHasAMigratedDatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, b := Pool(t), Pool(t)
	_, err := a.Exec(ctx, "insert into chain_blocks (chain_id, number, hash) values (1, 2, '0x3')")
	require.NoError(t, err)

	var rows int
	require.NoError(t, a.QueryRow(ctx, "select count(*) from chain_blocks").Scan(&rows))
	require.Equal(t, 1, rows)
	require.NoError(t, b.QueryRow(ctx, "select count(*) from chain_blocks").Scan(&rows))
	require.Zero(t, rows)
}

func TestBareHasNoSchema(t *testing.T) {
	t.Parallel()
	var table *string
	require.NoError(t, Open(t, Bare(t)).QueryRow(t.Context(), "select to_regclass('chain_blocks')::text").Scan(&table))
	require.Nil(t, table)
}

func TestDatabaseIsDropped(t *testing.T) {
	t.Parallel()
	var url string
	var conn *pgx.Conn
	t.Run("owner", func(t *testing.T) {
		var err error
		url = New(t)
		conn, err = pgx.Connect(t.Context(), url)
		require.NoError(t, err) // and left open, as by a test that failed half-way
	})
	require.Error(t, conn.Ping(t.Context()))
	_, err := pgx.Connect(t.Context(), url)
	require.ErrorContains(t, err, "does not exist")
}

func TestRestart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode    Mode
		durable bool
	}{{Fast, false}, {Immediate, true}} {
		t.Run(string(tt.mode), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			s, err := Start(ctx, Options{Durable: tt.durable, MaxConnections: 20,
				Settings: map[string]string{"work_mem": "5MB"}})
			require.NoError(t, err)
			dir := s.dir
			t.Cleanup(func() {
				require.NoError(t, s.Stop(context.Background()))
				require.NoDirExists(t, dir)
				require.NoError(t, s.Stop(context.Background()), "a second Stop is harmless")
			})

			conn, err := pgx.Connect(ctx, s.URL("postgres"))
			require.NoError(t, err)
			_, err = conn.Exec(ctx, "create table kept as select 1 as one")
			require.NoError(t, err)
			for name, want := range map[string]string{"work_mem": "5MB", "max_connections": "20", "synchronous_commit": "on",
				"fsync": map[bool]string{true: "on", false: "off"}[tt.durable]} {
				var got string
				require.NoError(t, conn.QueryRow(ctx, "select current_setting($1)", name).Scan(&got))
				require.Equal(t, want, got, name)
			}

			require.NoError(t, s.Down(ctx, tt.mode))
			require.Error(t, conn.Ping(ctx))
			_, err = pgx.Connect(ctx, s.URL("postgres"))
			require.Error(t, err)

			require.NoError(t, s.Up(ctx))
			again, err := pgx.Connect(ctx, s.URL("postgres"))
			require.NoError(t, err)
			var one int
			require.NoError(t, again.QueryRow(ctx, "select one from kept").Scan(&one))
			require.NoError(t, again.Close(ctx))
		})
	}
}

// A test binary is killed by a timeout or by hand more often than one would like.
func TestServerEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "TESTPG_CHILD=1")
	_, err := child.StdinPipe()
	require.NoError(t, err)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var dir, url, problem string
	_, err = fmt.Fscan(stdout, &dir, &url, &problem)
	require.NoError(t, err)
	require.Equal(t, "<nil>", problem)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)

	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.Eventually(t, func() bool { return conn.Ping(t.Context()) != nil }, 10*time.Minute, 10*time.Millisecond,
		"the server lives on")
	require.Eventually(t, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) }, time.Minute,
		10*time.Millisecond, "the files stay")
}

func TestFind(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	install := func(dir string) string {
		dir = filepath.Join(root, dir)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, program), nil, 0o755))
		}

		return dir
	}
	install("lib/9/bin")
	newest := install("lib/15/bin")
	pattern := filepath.Join(root, "lib/*/bin")

	_, ok := find([]string{root}, nil)
	require.False(t, ok)
	dir, ok := find([]string{root}, []string{pattern})
	require.True(t, ok)
	require.Equal(t, newest, dir, "versions are numbers, not words")

	linked := filepath.Join(root, "linked")
	require.NoError(t, os.Mkdir(linked, 0o755))
	require.NoError(t, os.Symlink(filepath.Join(newest, "initdb"), filepath.Join(linked, "initdb")))
	dir, ok = find([]string{linked}, nil)
	require.True(t, ok)
	require.Equal(t, newest, dir)

	dir, ok = find([]string{install("own")}, []string{pattern})
	require.True(t, ok)
	require.Equal(t, filepath.Join(root, "own"), dir, "PATH comes first")
}
