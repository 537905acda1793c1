//go:build unix

package testpg

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"sync"
	"syscall"
)

// unprivileged is whom Postgres runs as, or nil when this process is not root and it runs as ourselves.
var unprivileged = sync.OnceValues(func() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}

	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}

		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read the id of user %s: %w", name, err)
		}

		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read the group of user %s: %w", name, err)
		}

		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}

	return nil, errors.New("find a user for Postgres, which refuses root: there is neither postgres nor nobody; " +
		"create one")
})

// giveAway makes the server's user the owner of a folder.
func giveAway(dir string) error {
	c, err := unprivileged()
	if c == nil || err != nil {
		return err
	}

	return os.Chown(dir, int(c.Uid), int(c.Gid))
}

// attributes of Postgres's programs: their user, and a process group of their own, so that an
// interrupt from the terminal reaches only us and we end them in order.
func attributes() *syscall.SysProcAttr {
	c, _ := unprivileged() // giveAway has reported the error
	return &syscall.SysProcAttr{Credential: c, Setpgid: true}
}
