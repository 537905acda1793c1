package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a relayer.
type Process struct {
	ID, URL string // URL of its HTTP server
	LogFile string
	cmd     *exec.Cmd
	exited  chan struct{}
	err     error // of Wait, once exited is closed
}

// StartProcess starts a program whose output is appended to a file, and does not wait for it.
func StartProcess(bin string, args, environ []string, logFile string) (*Process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of a relayer: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(bin, args...) //nolint:noctx // it is ended by its owner
	cmd.Env, cmd.Stdout, cmd.Stderr = environ, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C at the terminal is for its owner
	orphanEnds(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}

	p := &Process{LogFile: logFile, cmd: cmd, exited: make(chan struct{})}
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

// Ready waits until the process says that it is ready, or has ended.
func (p *Process) Ready(ctx context.Context) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with this call: somebody else may hold the port, and not answer
		select {
		case <-p.exited:
			cancel()
		case <-running.Done():
		}
	}()
	err := Until(running, 20*time.Millisecond, p.ID+" to be ready", func() bool {
		code, _, err := p.Get(running, "/readyz")
		return err == nil && code == http.StatusOK
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s ended before it was ready, see %s", p.ID, p.LogFile)
	}

	return err
}

// Get asks the relayer for a path.
func (p *Process) Get(ctx context.Context, path string) (code int, said []byte, err error) {
	return p.ask(ctx, http.MethodGet, path, nil)
}

// Post sends the relayer a body.
func (p *Process) Post(ctx context.Context, path string, body []byte) (code int, said []byte, err error) {
	return p.ask(ctx, http.MethodPost, path, body)
}

func (p *Process) ask(ctx context.Context, method, path string, body []byte) (code int, said []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, p.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	said, err = io.ReadAll(resp.Body)

	return resp.StatusCode, said, err
}
