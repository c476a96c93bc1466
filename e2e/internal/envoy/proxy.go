package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const program = "envoy-1.40.0"

// Binary says whether .ci/envoy has fetched Envoy, with which programs it is started.
var Binary = netnstest.Need{Name: "Envoy, which .ci/envoy fetches", Check: func() error {
	for _, name := range []string{"setpriv", "nsenter"} {
		if _, err := exec.LookPath(name); err != nil {
			return err
		}
	}
	_, err := os.Stat(binary())
	return err
}}

func binary() string { return proctest.Cache("bin", program) }

// Proxy is Envoy in a pod's network namespace. It ends with the test.
type Proxy struct {
	tb        testing.TB
	shape     Shape
	netns     *netnsexec.NetNS
	dir       string
	accessLog string
	process   *proctest.Process
	client    *http.Client
}

// Start starts Envoy as the shape's user and waits until it is ready.
func Start(tb testing.TB, netns *netnsexec.NetNS, s Shape) *Proxy {
	tb.Helper()
	netnstest.Require(tb, Binary)
	dir, err := os.MkdirTemp("", "envoy-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &Proxy{tb: tb, shape: s, netns: netns, dir: dir, accessLog: filepath.Join(dir, "access.log")}
	if err := p.files(); err != nil {
		tb.Fatalf("write Envoy's files: %v", err)
	}
	p.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		errNS := netns.Do(func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return conn, errNS
	}}}
	p.Start()
	tb.Cleanup(p.Kill)
	return p
}

// files writes what another user has to read, in a directory that he can reach.
func (p *Proxy) files() error {
	bootstrap, err := json.Marshal(p.shape.Bootstrap(p.accessLog))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "bootstrap.json"), bootstrap, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(p.accessLog, nil, 0o600); err != nil {
		return err
	}
	if err := os.Chown(p.accessLog, int(p.shape.UID), int(p.shape.GID)); err != nil {
		return err
	}
	if err := link(binary(), filepath.Join(p.dir, program)); err != nil {
		return err
	}
	return os.Chmod(p.dir, 0o755)
}

// link copies where a link is not possible: the directories above the binary may be closed to the proxy's user.
func link(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // a program
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// Start starts Envoy again after Kill or Stop, with the same log.
func (p *Proxy) Start() {
	p.tb.Helper()
	args := []string{"--reuid", strconv.Itoa(int(p.shape.UID)), "--regid", strconv.Itoa(int(p.shape.GID)), "--clear-groups"}
	if p.shape.Transparent {
		args = append(args, "--inh-caps", "+net_admin", "--ambient-caps", "+net_admin")
	}
	args = append(args, "--", filepath.Join(p.dir, program), "-c", filepath.Join(p.dir, "bootstrap.json"), "--concurrency", "2",
		"--disable-hot-restart", "--use-dynamic-base-id", "--log-level", "warning", "--file-flush-interval-msec", "20")
	var err error
	p.process, err = proctest.Start(proctest.Options{Dir: p.dir, Name: "envoy", NetNS: p.netns.Path()}, "setpriv", args...)
	if err != nil {
		p.tb.Fatal(err)
	}
	if err := p.process.WaitFor(patience, func() error {
		_, err := p.Admin(p.tb.Context(), "/ready")
		return err
	}); err != nil {
		p.process.Kill()
		p.tb.Fatal(err)
	}
}

// Kill ends Envoy at once.
func (p *Proxy) Kill() { p.process.Kill() }

// CPU is the processor time that Envoy has used so far, in the kernel too.
func (p *Proxy) CPU() (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED of linux/posix-timers_types.h: in nanoseconds, of the whole process
	var used unix.Timespec
	err := unix.ClockGettime(int32(^p.process.Pid()<<3|sched), &used)
	return time.Duration(used.Nano()), err
}

// Admin asks Envoy's administration.
func (p *Proxy) Admin(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", admin, path), nil)
	if err != nil {
		return "", err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, resp.Status, text)
	}
	return string(text), err
}
