package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// fakeGcloud passes its arguments on to the test, and says what it is told: an exit code in the
// first line, then the text.
const fakeGcloud = `#!/usr/bin/env bash
exec 3<>"/dev/tcp/127.0.0.1/$FAKE_GCLOUD_PORT"
printf '%s\n' "$@" '' >&3
read -r code <&3
if ((code)); then cat <&3 >&2; else cat <&3; fi
exit "$code"
`

type gcloudAnswer struct {
	Text string
	Code int
}

// platform is Cloud Run as far as the scripts and runbooks of deploy use it, on processes of this
// machine. As there, a new revision is started beside the old one, which is stopped some time after
// the new one answers /healthz; a revision that does not answer leaves the old one as it is,
// although the service then describes itself with the new variables.
type platform struct {
	*world
	bin      string // folder with gcloud and escrow-relayer
	port     int    // that gcloud calls
	mu       sync.Mutex
	services map[string]*cloudService
	sick     map[string]map[string]string // by service: variables that its next revisions get in place of their own
	linger   time.Duration                // how long a revision that is not wanted any more goes on
	retired  sync.WaitGroup
}

type cloudService struct {
	env            map[string]string
	created, ready int // revisions; ready 0: none ever was
	serving        *lab.Process
}

func newPlatform(w *world) *platform {
	p := &platform{world: w, bin: w.t.TempDir(), services: map[string]*cloudService{},
		sick: map[string]map[string]string{}, linger: 300 * time.Millisecond}
	require.NoError(w.t, os.WriteFile(filepath.Join(p.bin, "gcloud"), []byte(fakeGcloud), 0o755))
	require.NoError(w.t, os.Symlink(bin, filepath.Join(p.bin, "escrow-relayer")))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	p.port = ln.Addr().(*net.TCPAddr).Port
	done := make(chan struct{})
	go func() { // ends when the listener is closed
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}

			var args []string
			for in := bufio.NewScanner(conn); in.Scan() && in.Text() != ""; {
				args = append(args, in.Text())
			}

			a := p.gcloud(args)
			fmt.Fprintf(conn, "%d\n%s", a.Code, a.Text)
			conn.Close()
		}
	}()
	w.t.Cleanup(func() { ln.Close(); <-done; p.retired.Wait() })

	return p
}

// environ is what a script runs with: this platform's gcloud, and an operator's variables.
func (p *platform) environ() []string {
	return append(os.Environ(), "PATH="+p.bin+":"+os.Getenv("PATH"), "FAKE_GCLOUD_PORT="+strconv.Itoa(p.port),
		"CHAIN_ID="+p.Chain.ChainID().String(), "DATABASE_URL="+p.URL)
}

func flagValue(args []string, name string) string {
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			return v
		}
	}

	return ""
}

func (p *platform) gcloud(args []string) gcloudAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(args) < 4 || args[0] != "run" || args[1] != "services" {
		return gcloudAnswer{Text: "unknown command\n", Code: 2}
	}

	verb, name := args[2], args[3]
	if verb == "replace" {
		return p.replace(name)
	}

	s := p.services[name]
	if s == nil {
		return gcloudAnswer{Text: "ERROR: (gcloud.run.services." + verb + ") Cannot find service [" + name + "]\n", Code: 1}
	}

	switch verb {
	case "describe":
		return gcloudAnswer{Text: s.describe(name)}
	case "update":
		env := maps.Clone(s.env)
		if k, v, ok := strings.Cut(flagValue(args, "--update-env-vars"), "="); ok {
			env[k] = v
		}

		if maps.Equal(env, s.env) && flagValue(args, "--update-labels") == "" {
			return gcloudAnswer{Text: "no changes\n"} // the template is as it was: no new revision, and the old verdict stands
		}

		s.env = env

		return p.deploy(name, s)
	case "delete":
		delete(p.services, name)
		p.retire(s.serving)
		return gcloudAnswer{}
	}

	return gcloudAnswer{Text: "unknown command " + verb + "\n", Code: 2}
}

// manifest is what the platform takes from a service's manifest.
type manifest struct {
	Metadata struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Name string   `yaml:"name"`
					Args []string `yaml:"args"`
					Env  []struct {
						Name  string `yaml:"name"`
						Value string `yaml:"value"`
					} `yaml:"env"`
				} `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

func (p *platform) replace(file string) gcloudAnswer {
	text, err := os.ReadFile(file)
	var m manifest
	if err == nil {
		err = yaml.Unmarshal(text, &m)
	}

	if err != nil || len(m.Spec.Template.Spec.Containers) == 0 {
		return gcloudAnswer{Text: fmt.Sprintf("ERROR: %s: %v\n", file, err), Code: 1}
	}

	env := map[string]string{}
	for _, v := range m.Spec.Template.Spec.Containers[0].Env {
		if v.Value != "" { // the others come from Secret Manager, here from the lab
			env[v.Name] = v.Value
		}
	}

	s := p.services[m.Metadata.Name]
	if s == nil {
		s = &cloudService{}
		p.services[m.Metadata.Name] = s
	} else if maps.Equal(s.env, env) {
		return gcloudAnswer{Text: "no changes\n"}
	}

	s.env = env

	return p.deploy(m.Metadata.Name, s)
}

// deploy starts a revision and waits until its startup probe is content.
func (p *platform) deploy(name string, s *cloudService) gcloudAnswer {
	s.created++
	number, err1 := strconv.Atoi(s.env["PARTITION_NUMBER"])
	total, err2 := strconv.Atoi(s.env["TOTAL_PARTITIONS"])
	env := maps.Clone(s.env)
	maps.Copy(env, p.sick[name])
	next, err3 := p.Run(name, number, total, env)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return gcloudAnswer{Text: err.Error() + "\n", Code: 1}
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if !healthy(ctx, next) {
		next.Kill()
		return gcloudAnswer{Text: fmt.Sprintf("ERROR: (gcloud.run.services.update) Revision '%s-%05d' is not ready and cannot serve traffic. "+
			"The user-provided container failed to start and listen on the port.\n", name, s.created), Code: 1}
	}

	old := s.serving
	s.ready, s.serving = s.created, next
	p.retire(old)

	return gcloudAnswer{Text: "Done.\n"}
}

// retire stops an old revision's process after a while, as Cloud Run does: the caller of gcloud does not wait for it.
func (p *platform) retire(old *lab.Process) {
	if old == nil {
		return
	}

	p.retired.Go(func() {
		timer := time.NewTimer(p.linger)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-old.Exited():
		}

		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = old.Stop(ctx)
	})
}

func healthy(ctx context.Context, proc *lab.Process) bool {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, proc.URL+"/healthz", nil)
		if err != nil {
			return false
		}

		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return true
			}
		}

		select {
		case <-proc.Exited():
			return false
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// describe writes what `--format=yaml` shows, as far as it matters.
func (s *cloudService) describe(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  template:\n    spec:\n      containers:\n      - env:\n", name)
	for _, k := range slices.Sorted(maps.Keys(s.env)) {
		fmt.Fprintf(&b, "        - name: %s\n          value: '%s'\n", k, s.env[k])
	}

	fmt.Fprintf(&b, "status:\n  latestCreatedRevisionName: %s-%05d\n", name, s.created)
	if s.ready > 0 {
		fmt.Fprintf(&b, "  latestReadyRevisionName: %s-%05d\n", name, s.ready)
	}

	return b.String()
}

// sicken gives the next revisions of a service these variables in place of their own; nil makes it well.
func (p *platform) sicken(name string, env map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sick[name] = env
}

var wayLine = regexp.MustCompile(`(?m)^  (Go back|Go on, when mended): +(.+)$`)

// ways are the command lines that a stopped script offers.
func ways(t *testing.T, out string) map[string]string {
	found := map[string]string{}
	for _, m := range wayLine.FindAllStringSubmatch(out, -1) {
		found[m[1]] = m[2]
	}

	require.NotEmpty(t, found, out)

	return found
}
