//go:build pgbouncer

package database

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// Behind a pooler of transactions the next statement may reach another server session: nothing that was
// prepared on the last one is used. Debian 12's PgBouncer knows no prepared statements.
func TestPoolsOfTransactions(t *testing.T) {
	direct := testpg.Bare(t)
	conn, err := pgx.ParseConfig(direct)
	require.NoError(t, err)
	reserved, err := port.Reserve()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reserved.Close()) })
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	ini := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
%[1]s = host=%[2]s port=%[3]d dbname=%[1]s user=%[4]s pool_size=2
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[5]d
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_round_robin = 1
`, conn.Database, conn.Host, conn.Port, conn.User, reserved.Number), 0o644))
	args := []string{ini}
	if os.Getuid() == 0 {
		args = []string{"-u", "nobody", ini}
	}

	bouncer := exec.CommandContext(t.Context(), "pgbouncer", args...)
	bouncer.Stderr = t.Output()
	require.NoError(t, bouncer.Start(), "install PgBouncer: apt-get install pgbouncer")
	t.Cleanup(func() { _ = bouncer.Process.Kill(); _ = bouncer.Wait() })
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", reserved.Addr())
		if err == nil {
			_ = c.Close()
		}

		return err == nil
	}, time.Minute, 20*time.Millisecond)

	pool := fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", conn.User, reserved.Number, conn.Database)
	cfg := settings(pool)
	cfg.SessionDatabaseURL = direct
	db, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	conns := all(t, db)
	for n := range 5 {
		for _, c := range conns {
			for _, sql := range []string{`select $1::int`, `select $1::int + 0`} {
				var got int
				require.NoError(t, c.QueryRow(t.Context(), sql, n).Scan(&got))
				require.Equal(t, n, got)
			}
		}
	}

	for _, c := range conns {
		c.Release()
	}
}
