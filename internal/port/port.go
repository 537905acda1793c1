// Package port keeps TCP ports of this machine for servers that listen later, or again and again.
package port

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Reserved is a port of 127.0.0.1 to which a socket is bound that never listens, so connections to it are refused.
// Whoever sets SO_REUSEADDR, as Go and Postgres do, can listen there, in any process; the kernel gives the port to
// nobody who asks for any port, neither a listener nor an outgoing connection (socket(7), ip(7)).
type Reserved struct {
	Number int
	fd     int
}

// Reserve reserves a free port, until Close or the end of this process.
func Reserve() (*Reserved, error) {
	syscall.ForkLock.RLock() // no child inherits the socket
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}

	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", os.NewSyscallError("socket", err))
	}

	r := &Reserved{fd: fd}
	if err := r.bind(); err != nil {
		return nil, errors.Join(fmt.Errorf("reserve a port: %w", err), r.Close())
	}

	return r, nil
}

func (r *Reserved) bind() error {
	if err := syscall.SetsockoptInt(r.fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}

	if err := syscall.Bind(r.fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}

	addr, err := syscall.Getsockname(r.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}

	r.Number = addr.(*syscall.SockaddrInet4).Port

	return nil
}

// Addr is the port as an address host:port.
func (r *Reserved) Addr() string { return fmt.Sprintf("127.0.0.1:%d", r.Number) }

// Close gives the port up. Who listens there goes on. A second call does nothing, nor one on nil.
func (r *Reserved) Close() error {
	if r == nil || r.fd < 0 {
		return nil
	}

	err := os.NewSyscallError("close", syscall.Close(r.fd))
	r.fd = -1

	return err
}
