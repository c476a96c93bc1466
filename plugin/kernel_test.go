//go:build linux

package plugin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/internal/testing/failtest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

var variants = []string{"iptables-nft", "iptables-legacy"}

// node is a node with the plugin on it and an API server with pods.
type node struct {
	server     *apiservertest.APIServer
	kubeconfig string
	runDir     string
	backend    string
	binary     string
}

func newNode(t testing.TB, backend string) *node {
	t.Helper()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"))
	n := &node{server: apiservertest.NewAPIServer(t), runDir: t.TempDir(), backend: backend, binary: binary(t)}
	failtest.Tail(t, filepath.Join(n.runDir, "plugin.log"))
	var err error
	n.kubeconfig, err = n.server.WriteKubeconfig(t.TempDir())
	require.NoError(t, err)
	return n
}

// attach prepares runs of the plugin for the pod in the namespace.
func (n *node) attach(pod *corev1.Pod, ns *netnsexec.NetNS) binarytest.Attachment {
	n.server.SetPod(pod)
	return binarytest.Attachment{
		Binary: n.binary, NetNS: ns.Path(), Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID),
		Config: object{
			"cniVersion": "1.1.0", "name": "k8s", "type": "meshcni", "run_dir": n.runDir, "backend": n.backend,
			"kubernetes": object{"kubeconfig": n.kubeconfig, "exclude_namespaces": []string{"kube-system", "istio-system"}},
			"prevResult": object{
				"cniVersion": "1.1.0",
				"interfaces": []object{{"name": "veth1"}, {"name": "eth0", "sandbox": ns.Path()}},
				"ips":        []object{{"address": "10.244.1.5/24", "interface": 1}, {"address": "fd00:10:244::5/64", "interface": 1}},
			},
		},
	}
}

func add(t testing.TB, a binarytest.Attachment) {
	t.Helper()
	out := a.Run(t, "ADD")
	require.Zero(t, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
}

// rules is all that iptables-save of both variants and families says, without counters and comments.
func rules(t testing.TB, ns *netnsexec.NetNS) string {
	t.Helper()
	var all strings.Builder
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		var out, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Stdout, cmd.Stderr = &out, &stderr
		require.NoError(t, ns.Run(cmd), "%s: %s", program, &stderr)
		for line := range strings.Lines(counters.ReplaceAllString(out.String(), "")) {
			if !strings.HasPrefix(line, "#") {
				all.WriteString(program + " " + line)
			}
		}
	}
	return all.String()
}

var execve = regexp.MustCompile(`execve\("([^"]+)"`)

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

const fates = "../testdata/fates"

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into))
}

// TestFates runs the built program for a recorded pod and sends the recorded packets; one that the reference refuses, it refuses. The
// other recorded pods are redirect/apply's, to which cmd/internal/agreementtest says that the plugin gives the same rules.
func TestFates(t *testing.T) {
	var expected map[string]struct{ Fates map[string]string }
	readJSON(t, filepath.Join(fates, "expected.json"), &expected)
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			n := newNode(t, variant)
			w := netnstest.NewWorld(t, netnstest.Options{})
			code, message := n.attach(caseOf(t, "bad-port"), w.Pod).Run(t, "ADD").Failure()
			require.Equal(t, 7, code, message)
			add(t, n.attach(caseOf(t, "fam-dual"), w.Pod))
			assert.Len(t, n.server.Requests(), 2, "one GET each")
			assert.Equal(t, expected["fam-dual"].Fates, w.Run(netnstest.Probes(netnstest.Plan{})))
		})
	}
}

func caseOf(t testing.TB, name string) *corev1.Pod {
	var pod corev1.Pod
	readJSON(t, filepath.Join(fates, "cases", name+".json"), &pod)
	return &pod
}

func TestRepeatedAddCheckDel(t *testing.T) {
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			n := newNode(t, variant)
			ns := netnstest.New(t)
			a := n.attach(caseOf(t, "tproxy-dual"), ns)
			add(t, a)
			once := rules(t, ns)
			assert.Contains(t, once, "ip6tables")
			add(t, a)
			assert.Equal(t, once, rules(t, ns), "a second ADD")
			out := a.Run(t, "CHECK")
			assert.Zero(t, out.Exit, string(out.Stdout))

			changed := n.attach(caseOf(t, "out-exclude-ports"), ns)
			add(t, changed)
			afterChange := rules(t, ns)
			fresh := netnstest.New(t)
			inFresh := changed
			inFresh.NetNS = fresh.Path()
			add(t, inFresh)
			// The tables that the first program had may be left, empty.
			assert.Equal(t, onlyRules(rules(t, fresh)), onlyRules(afterChange), "an ADD after a different one")
			out = changed.Run(t, "CHECK")
			assert.Zero(t, out.Exit, string(out.Stdout))

			n.server.Close()
			changed.NetNS, changed.Pod = "", ""
			for range 3 { // as containerd does
				out = changed.Run(t, "DEL")
				assert.Zero(t, out.Exit, string(out.Stdout))
				assert.Empty(t, out.Stdout)
			}
		})
	}
}

func onlyRules(saved string) string {
	var b strings.Builder
	for line := range strings.Lines(saved) {
		if strings.Contains(line, " -A ") || strings.Contains(line, " -N ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestConcurrentAdds(t *testing.T) {
	const pods, atOnce = 20, 10
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			n := newNode(t, variant)
			pod := caseOf(t, "fam-dual")
			var all []binarytest.Attachment
			var spaces []*netnsexec.NetNS
			for i := range pods {
				p := pod.DeepCopy()
				p.Name = fmt.Sprintf("pod-%d", i)
				spaces = append(spaces, netnstest.New(t))
				all = append(all, n.attach(p, spaces[i]))
			}
			var wg sync.WaitGroup
			slots := make(chan struct{}, atOnce)
			for _, a := range all {
				slots <- struct{}{}
				wg.Go(func() {
					defer func() { <-slots }()
					out := a.Run(t, "ADD")
					assert.Zero(t, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
				})
			}
			wg.Wait()
			assert.Len(t, n.server.Requests(), pods)
			want := onlyRules(rules(t, spaces[0]))
			require.NotEmpty(t, want)
			for _, ns := range []*netnsexec.NetNS{spaces[1], spaces[10], spaces[19]} {
				assert.Equal(t, want, onlyRules(rules(t, ns)))
			}
		})
	}
}

// TestProcesses counts what a pod costs: programs by strace, requests by the server.
func TestProcesses(t *testing.T) {
	netnstest.Require(t, netnstest.Binary("strace"))
	execs := func(t *testing.T, a binarytest.Attachment) []string {
		trace := filepath.Join(t.TempDir(), "trace")
		a.Wrap = []string{"/usr/bin/strace", "-f", "-qq", "-e", "trace=execve", "-e", "signal=none", "-o", trace}
		add(t, a)
		text, err := os.ReadFile(trace)
		require.NoError(t, err)
		var programs []string
		for line := range strings.Lines(string(text)) {
			// A line may be "<unfinished ...>" and resumed later.
			if m := execve.FindStringSubmatch(line); m != nil && !strings.Contains(line, " = -1") {
				programs = append(programs, filepath.Base(m[1]))
			}
		}
		require.Equal(t, "meshcni", programs[0])
		return programs[1:]
	}
	for _, variant := range variants {
		n := newNode(t, variant)
		for _, tc := range []struct {
			pod    string
			change func(*corev1.Pod)
			execs  int
			gets   int
		}{
			{"fam-dual", nil, 2, 1},
			{"fam-v4-default", nil, 1, 1},
			{"sel-disable-envoy", nil, 0, 1},
			{"sel-no-status", nil, 0, 1},
			{"fam-dual", func(p *corev1.Pod) { p.Namespace = "kube-system" }, 0, 0},
			{"fam-dual", func(p *corev1.Pod) { p.Namespace, p.Name = "meshcni-system", "meshcni-node-1" }, 0, 0},
		} {
			pod := caseOf(t, tc.pod)
			if tc.change != nil {
				tc.change(pod)
			}
			t.Run(variant+"/"+pod.Namespace+"/"+tc.pod, func(t *testing.T) {
				before := len(n.server.Requests())
				programs := execs(t, n.attach(pod, netnstest.New(t)))
				assert.Len(t, programs, tc.execs, "%v", programs)
				assert.Equal(t, tc.gets, len(n.server.Requests())-before)
			})
		}
	}
}

// TestRefusedOnTheKernel: with the real program, the namespace is as it was.
func TestRefusedOnTheKernel(t *testing.T) {
	n := newNode(t, "iptables-nft")
	pod := caseOf(t, "fam-dual")
	config := func(a binarytest.Attachment) object { return a.Config.(object) }
	notNS := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(notNS, nil, 0o600))
	for name, tc := range map[string]struct {
		change func(*binarytest.Attachment)
		code   int
		says   string
	}{
		"the host's netns":    {func(a *binarytest.Attachment) { a.NetNS = fmt.Sprintf("/proc/%d/ns/net", os.Getpid()) }, 8, "host"},
		"the plugin's netns":  {func(a *binarytest.Attachment) { a.NetNS = "/proc/self/ns/net" }, 8, "host"},
		"a file":              {func(a *binarytest.Attachment) { a.NetNS = notNS }, 8, "not a network namespace"},
		"a netns that's gone": {func(a *binarytest.Attachment) { a.NetNS = notNS + "-gone" }, 8, "gone"},
		"missing kubeconfig":  {func(a *binarytest.Attachment) { config(*a)["kubernetes"] = object{"kubeconfig": "/no/such"} }, 50, "/no/such"},
		"no such pod": {func(a *binarytest.Attachment) {
			a.Pod = "other"
			config(*a)["add_deadline"] = "1s"
		}, 11, "not found"},
		"malformed": {func(a *binarytest.Attachment) { a.Config = []byte("{") }, 6, "decode"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			before := rules(t, ns)
			a := n.attach(pod, ns)
			tc.change(&a)
			out := a.Run(t, "ADD")
			code, message := out.Failure()
			assert.Equal(t, tc.code, code, message)
			assert.Contains(t, message, tc.says)
			assert.Equal(t, before, rules(t, ns))
			a.Env = nil
			if name != "malformed" {
				assert.Zero(t, a.Run(t, "DEL").Exit)
			}
		})
	}
}

// TestInterrupted: a runtime that gives up sends SIGTERM, and gets an answer.
func TestInterrupted(t *testing.T) {
	n := newNode(t, "iptables-nft")
	ns := netnstest.New(t)
	a := n.attach(caseOf(t, "fam-dual"), ns)
	cmd, err := a.Command(t.Context(), "ADD")
	require.NoError(t, err)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	asked := make(chan struct{})
	n.server.Handle(func(i int, w http.ResponseWriter, r *http.Request) bool {
		close(asked)
		return apiservertest.Hang()(i, w, r)
	})
	require.NoError(t, cmd.Start())
	<-asked
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	assert.Error(t, cmd.Wait())
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	assert.Contains(t, stdout.String(), `"code": 11`)
	assert.Contains(t, stdout.String(), "interrupted")
}
