package difftest_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// These scale the test: how many Redirects, and connections under each. Without them it is a few
// thousand connections, in less than a minute. `make difftest-long` holds a hundred thousand.
const (
	redirectsEnv = "MESHCNI_DIFFTEST_REDIRECTS"
	packetsEnv   = "MESHCNI_DIFFTEST_PACKETS"
)

func fromEnv(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no count", name, text)
	}
	return n
}

var backends = []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy, ruleset.BackendNftables}

// A drop can only be seen by waiting. A first, short wait sorts out most of
// what gets an answer; who seems to be dropped against the prediction is asked
// again with patience.
const (
	short = 400 * time.Millisecond
	long  = 5 * time.Second
)

// TestKernelAgrees puts random Redirects into the kernel by each backend, holds random conversations, and compares with
// each other and with the tracer who answers and whom that sees, and whether every message arrives both ways.
func TestKernelAgrees(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.IPv6,
		netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"))
	redirects := fromEnv(t, redirectsEnv, longtest.Rounds(30, 400))
	packets := fromEnv(t, packetsEnv, 40)
	if err := flag.Set("rapid.checks", strconv.Itoa(redirects)); err != nil {
		t.Fatal(err)
	}
	var sent, compared atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		c := Cases(packets).Draw(t, "case")
		predicted, err := c.Predict()
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		by := map[string]Fates{"tracer": predicted}
		var mu sync.Mutex
		var wg sync.WaitGroup
		var failures []string
		for _, name := range backends {
			wg.Go(func() {
				fates, err := observePatiently(c, name, predicted)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failures = append(failures, fmt.Sprintf("%s: %v", name, err))
					return
				}
				by[string(name)] = fates
			})
		}
		wg.Wait()
		if len(failures) > 0 {
			t.Fatalf("%s\n%s", c, strings.Join(failures, "\n"))
		}
		sent.Add(int64(len(c.Probes) * len(backends)))
		compared.Add(1)
		if lines := Disagreements(by); len(lines) > 0 {
			first, _, _ := strings.Cut(lines[0], ": ")
			t.Fatalf("%s\n%d of %d connections:\n%s\n%s", c, len(lines), len(c.Probes), strings.Join(lines, "\n"), c.Explain(first))
		}
	})
	t.Logf("%d Redirects, %d connections, under %d backends, 0 disagreements", compared.Load(), sent.Load(), len(backends))
}

func observePatiently(c Case, name ruleset.Backend, predicted Fates) (Fates, error) {
	fates, err := observe(c, name, short)
	if err != nil {
		return nil, err
	}
	doubtful := c
	doubtful.Probes = nil
	for _, p := range c.Probes {
		if fates[p.String()] == "timeout" && predicted[p.String()] != "timeout" {
			doubtful.Probes = append(doubtful.Probes, p)
		}
	}
	if len(doubtful.Probes) == 0 {
		return fates, nil
	}
	again, err := observe(doubtful, name, long)
	for probe, fate := range again {
		fates[probe] = fate
	}
	return fates, err
}

// observe makes a world, applies the Redirect and sends the packets.
func observe(c Case, name ruleset.Backend, patience time.Duration) (fates Fates, err error) {
	err = inWorld(c, patience, func(w *netnstest.World) error {
		b, err := apply.Choose(context.Background(), w.Pod, apply.Options{Backend: name, Runner: w.Pod.Sandbox()})
		if err != nil {
			return err
		}
		if _, err := b.Apply(context.Background(), c.Redirect.MustRuleset()); err != nil {
			return err
		}
		fates = w.Run(c.Probes)
		return nil
	})
	return fates, err
}

// inWorld runs fn with a world that is gone when it returns; rapid and
// goroutines both need it to be no part of a testing.T.
func inWorld(c Case, patience time.Duration, fn func(*netnstest.World) error) error {
	o := c.Options()
	o.Patience = patience
	tb := &scope{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer tb.end()
		if err := fn(netnstest.NewWorld(tb, o)); err != nil {
			tb.err = err
		}
	}()
	<-done
	return tb.err
}

// scope is a testing.TB that lasts as long as one world.
type scope struct {
	testing.TB // nil

	cleanups []func()
	err      error
}

func (s *scope) Helper()          {}
func (s *scope) Failed() bool     { return false }
func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }
func (s *scope) Fatalf(format string, args ...any) {
	s.err = fmt.Errorf(format, args...)
	runtime.Goexit()
}
func (s *scope) Skipf(format string, args ...any) { s.Fatalf(format, args...) }

func (s *scope) TempDir() string {
	dir, err := os.MkdirTemp("", "difftest")
	if err != nil {
		s.Fatalf("make a temporary directory: %v", err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *scope) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}
