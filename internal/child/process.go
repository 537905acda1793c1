// Package child runs programs that end with this process.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Process is a running program.
type Process struct {
	ID      string // what errors call it
	LogFile string
	cmd     *exec.Cmd
	exited  chan struct{}
	err     error // of Wait, once exited is closed
}

// Start starts a program whose output is appended to a file, and does not wait for it.
func Start(id, bin string, args, environ []string, logFile string) (*Process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", id, err)
	}
	defer out.Close()
	cmd := exec.Command(bin, args...) //nolint:noctx // it is ended by its owner
	cmd.Env, cmd.Stdout, cmd.Stderr = environ, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C at the terminal is for its owner
	orphanEnds(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}

	p := &Process{ID: id, LogFile: logFile, cmd: cmd, exited: make(chan struct{})}
	go func() { // ends with the process
		p.err = cmd.Wait()
		close(p.exited)
	}()

	return p, nil
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal; to a process that has ended, nothing.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends the process at once and waits for it.
func (p *Process) Kill() {
	p.Signal(syscall.SIGCONT)
	p.Signal(syscall.SIGKILL)
	<-p.exited
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether it has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Wait waits for the end and returns the exit code; -1 when a signal ended it.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.exited:
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for %s to exit: %w", p.ID, ctx.Err())
	}

	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		return 0, p.err
	}

	return p.cmd.ProcessState.ExitCode(), nil
}

// Stop asks it to stop and waits; after the deadline it is killed, which is an error.
func (p *Process) Stop(ctx context.Context) error {
	p.Signal(syscall.SIGTERM)
	code, err := p.Wait(ctx)
	if err != nil {
		p.Kill()
		return err
	}

	// A signal that comes before main has begun ends the process as it is: nothing had begun.
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if early := ok && status.Signaled() && status.Signal() == syscall.SIGTERM; code != 0 && !early {
		return fmt.Errorf("%s exited with %d after SIGTERM, see %s", p.ID, code, p.LogFile)
	}

	return nil
}
