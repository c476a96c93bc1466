package redirectcmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// shown is a rule in show's JSON.
type shown struct {
	Backend, Family, Table, Chain, Rule, Reason string
	Position                                    int
	Ours                                        bool
	Counters, Since                             *struct{ Packets, Bytes uint64 }
}

func find(t *testing.T, rules []shown, chain, target string) shown {
	t.Helper()
	for _, r := range rules {
		if r.Chain == chain && strings.HasSuffix(r.Rule, target) && r.Family != "ipv6" {
			return r
		}
	}
	require.Fail(t, "no such rule", "%s %s in %v", chain, target, rules)
	return shown{}
}

func send(t *testing.T, w *netnstest.World) {
	t.Helper()
	probe, err := netnstest.ParseProbe("pod tcp 1000/1000 -> 10.96.5.5:80")
	require.NoError(t, err)
	require.Equal(t, map[string]string{probe.String(): "proxy:15001 orig=10.96.5.5:80"}, w.Run([]netnstest.Probe{probe}))
}

// TestShow: the live rules of every backend with what packets did to their counters, and with reasons: of the pod's plan,
// or without a pod of what is usual.
func TestShow(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	for _, backend := range []string{"iptables-nft", "iptables-legacy", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			w := netnstest.NewWorld(t, netnstest.Options{})
			at := []string{"--netns", w.Pod.Path()}
			pod := filepath.Join("..", "..", "..", "testdata", "fates", "cases", "out-exclude-ports.json")
			show := func(args ...string) []shown {
				t.Helper()
				got := call{}.run(t, append(append([]string{"show", "-o", "json"}, at...), args...)...)
				require.Zero(t, got.code, got.errOut)
				var rules []shown
				require.NoError(t, json.Unmarshal([]byte(got.out), &rules))
				return rules
			}
			assert.Empty(t, show())
			assert.Equal(t, "no rules\n", call{}.run(t, append([]string{"show"}, at...)...).out)

			got := call{}.run(t, append([]string{"apply", "-f", pod, "--backend", backend}, at...)...)
			require.Zero(t, got.code, got.errOut)
			if backend == "nftables" {
				in(t, w.Pod, "nft", "add table ip other; add chain ip other seen; add rule ip other seen counter packets 7 bytes 8")
			} else {
				in(t, w.Pod, backend, "-t", "nat", "-A", "POSTROUTING", "-m", "mark", "--mark", "0x77", "-j", "RETURN")
			}
			send(t, w)

			rules := show("-f", pod)
			ours := 0
			for _, r := range rules {
				assert.Equal(t, backend, r.Backend)
				if r.Ours {
					ours++
				}
			}
			assert.Equal(t, len(rules)-1, ours)
			prefix, user := "", "-m owner --uid-owner 1337 -j RETURN"
			if backend == "nftables" {
				prefix, user = "nat/", "meta skuid 1337 return"
			}
			assert.Equal(t, "proxy to the outside", find(t, rules, prefix+"ISTIO_OUTPUT", user).Reason)
			redirect := find(t, rules, prefix+"ISTIO_REDIRECT", "15001")
			if backend == "nftables" {
				assert.Nil(t, redirect.Counters)
				assert.Equal(t, uint64(7), find(t, rules, "seen", "counter").Counters.Packets)
			} else {
				assert.Equal(t, uint64(1), redirect.Counters.Packets, "one connection")
				assert.Equal(t, uint64(60), redirect.Counters.Bytes, "its SYN")
			}

			usual := show()
			assert.Len(t, usual, len(rules))
			for i, r := range usual {
				assert.Equal(t, rules[i].Ours, r.Ours, r.Rule)
				if r.Reason == "" && rules[i].Reason != "" {
					assert.Equal(t, "outbound port is excluded", rules[i].Reason, "of the pod's own setting nothing is known without it")
				}
			}

			text := call{}.run(t, append([]string{"show", "-f", pod}, at...)...)
			require.Zero(t, text.code, text.errOut)
			assert.Contains(t, text.out, "proxy to the outside")
			assert.Contains(t, text.out, "not the mesh's")
			for line := range strings.Lines(text.out) {
				if strings.Contains(line, "ISTIO_REDIRECT ") && strings.Contains(line, "15001") {
					assert.Equal(t, backend == "nftables", strings.Contains(line, "-  "), line)
				}
			}
			outsider := call{stdin: "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: app}]}"}.run(t, append([]string{"show", "-f", "-"}, at...)...)
			assert.Contains(t, outsider.errOut, "it should have no rules")
		})
	}
}

// TestShowWatch: what packets do between two looks is beside the counters; --pid names the namespace by a process.
func TestShowWatch(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	w := netnstest.NewWorld(t, netnstest.Options{})
	require.Zero(t, call{}.run(t, "apply", "--netns", w.Pod.Path(), "--backend", "iptables-nft", "--ip", "10.244.1.5").code)
	process := exec.Command("cat") // which waits for its input
	input, err := process.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, w.Pod.Do(process.Start))
	t.Cleanup(func() {
		_ = input.Close()
		_ = process.Wait()
	})
	for _, output := range []string{"text", "json"} {
		ctx, stop := context.WithCancel(t.Context())
		var out, errOut proctest.Buffer
		code := make(chan int, 1)
		p := redirectcmd.Program{Stdout: &out, Stderr: &errOut}
		go func() {
			code <- p.Main(ctx, []string{"show", "--pid", strconv.Itoa(process.Process.Pid), "--watch", "--interval", "1ms", "-o", output})
		}()
		require.Eventually(t, func() bool { return strings.Contains(out.String(), "15001") }, netnstest.Patience, time.Millisecond, "%s", &errOut)
		send(t, w)
		increase := map[string]string{"text": "(+1)", "json": `"packets": 1,`}[output]
		require.Eventually(t, func() bool {
			if output == "json" {
				_, after, _ := strings.Cut(out.String(), `"since"`)
				return strings.Contains(after, increase)
			}
			return strings.Contains(out.String(), increase)
		}, netnstest.Patience, time.Millisecond)
		stop()
		assert.Zero(t, <-code)
	}
}

// TestShowRefuses what names no namespace, two, or the host's.
func TestShowRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--netns", "/run/netns/a", "--pid", "1"}, 2, "only one of them"},
		{[]string{"--pid", strconv.Itoa(os.Getpid())}, 1, "the host's own network namespace"},
		{[]string{"--netns", "/nowhere"}, 1, "/nowhere"},
		{[]string{"--interval", "0s"}, 2, "--interval"},
		{[]string{"-f", "absent.yaml", "-o", "xml"}, 2, "not one of text, json"},
	} {
		var out, errOut bytes.Buffer
		p := redirectcmd.Program{Stdout: &out, Stderr: &errOut}
		assert.Equal(t, c.code, p.Main(t.Context(), append([]string{"show"}, c.args...)), c.args)
		assert.Contains(t, errOut.String(), c.says)
		assert.Empty(t, out.String())
	}
}

// TestShowInterrupted: who asks once and is interrupted has no answer, and scripts must not take that for a good one. A watch ends so.
func TestShowInterrupted(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	w := netnstest.NewWorld(t, netnstest.Options{})
	ctx, interrupt := context.WithCancelCause(t.Context())
	interrupt(errors.New("interrupted"))
	for code, args := range map[int][]string{1: nil, 0: {"--watch"}} {
		var out, errs bytes.Buffer
		p := redirectcmd.Program{CNIConfDirs: []string{}, Stdout: &out, Stderr: &errs}
		assert.Equal(t, code, p.Main(ctx, append([]string{"show", "--netns", w.Pod.Path()}, args...)), errs.String())
		assert.Equal(t, code == 1, strings.Contains(errs.String(), "meshcni-redirect: interrupted\n"), errs.String())
		assert.Empty(t, out.String())
	}
}
