package testpg

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
)

// Bouncer starts PgBouncer (Debian: pgbouncer) in front of the database of a URL, and returns the URL through it. mode
// is its pool_mode. Two server sessions take turns, so that each is met.
func Bouncer(t testing.TB, direct, mode string) string {
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
pool_mode = %[6]s
server_round_robin = 1
`, conn.Database, conn.Host, conn.Port, conn.User, reserved.Number, mode), 0o644))
	args := []string{ini}
	if os.Getuid() == 0 {
		args = []string{"-u", "nobody", ini}
	}

	cmd := exec.CommandContext(t.Context(), "pgbouncer", args...)
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start(), "install PgBouncer: apt-get install pgbouncer")
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", reserved.Addr())
		if err == nil {
			_ = c.Close()
		}

		return err == nil
	}, time.Minute, 20*time.Millisecond)

	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", conn.User, reserved.Number, conn.Database)
}
