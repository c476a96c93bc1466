package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/meshcni/meshcni/e2e/internal/onenode"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// kept is a `make cluster` that runs.
type kept struct {
	*exec.Cmd
	out   output
	ended chan error
}

// output is what a command has printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// makeCluster runs `make cluster` as a shell does, in a process group of its own, and waits until it has printed a text.
func makeCluster(t *testing.T, until string, variables ...string) *kept {
	t.Helper()
	k := &kept{Cmd: exec.Command("make", append([]string{"-s", "cluster"}, variables...)...), ended: make(chan error, 1)}
	k.Dir, k.Stdout, k.Stderr = proctest.Root(), &k.out, &k.out
	k.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, k.Start())
	go func() { k.ended <- k.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-k.Process.Pid, syscall.SIGTERM) // if the test has not
		if t.Failed() {
			t.Logf("make cluster:\n%s", k.out.String())
		}
	})
	waittest.Eventually(t, "make cluster prints "+strconv.Quote(until), func() error {
		select {
		case err := <-k.ended:
			require.NoError(t, errors.Join(errors.New("it has ended"), err), k.out.String())
		default:
		}
		if said := k.out.String(); !strings.Contains(said, until) {
			return errors.New(said)
		}
		return nil
	})
	return k
}

// traces are what could be left of a cluster.
type traces struct {
	outer, first int
	namespaces   []string // of the machine, such as net:[4026532000]
	groups       []string // control groups of the machine
	address      string   // of the API server, on this machine
}

// tracesOf finds them while the cluster is up.
func tracesOf(t *testing.T) (s traces) {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(dir(), "bin", "on-node"))
	require.NoError(t, err)
	pid := regexp.MustCompile(`--target (\d+)`).FindSubmatch(script)
	require.NotNil(t, pid, string(script))
	s.first, err = strconv.Atoi(string(pid[1]))
	require.NoError(t, err)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.first))
	require.NoError(t, err)
	s.outer, err = strconv.Atoi(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
	require.NoError(t, err)
	for _, kind := range []string{"net", "pid", "mnt", "ipc"} {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", s.first, kind))
		require.NoError(t, err)
		s.namespaces = append(s.namespaces, ns)
	}
	s.groups = groupsOf(t, s.outer)
	require.NotEmpty(t, s.groups)
	return s
}

func groupsOf(t *testing.T, outer int) (groups []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.HasPrefix(f[2], "cgroup") {
			found, err := filepath.Glob(filepath.Join(f[1], fmt.Sprintf("meshcni-e2e-%d", outer)))
			require.NoError(t, err)
			groups = append(groups, found...)
		}
	}
	return groups
}

// assertNothingLeft waits until nothing is left: no process in the machine's namespaces, no control group, no file, no port, no mount.
func (s traces) assertNothingLeft(t *testing.T) {
	t.Helper()
	waittest.Eventually(t, "nothing is left of the cluster", func() error {
		var errs []error
		links, err := filepath.Glob("/proc/[0-9]*/ns/*")
		require.NoError(t, err)
		for _, link := range links {
			ns, _ := os.Readlink(link)
			for _, ours := range s.namespaces {
				if ns == ours {
					errs = append(errs, fmt.Errorf("%s is %s", link, ns))
				}
			}
		}
		if groups := groupsOf(t, s.outer); len(groups) != 0 {
			errs = append(errs, fmt.Errorf("control groups %q", groups))
		}
		if _, err := os.Lstat(dir()); !os.IsNotExist(err) {
			errs = append(errs, fmt.Errorf("%s is there: %w", dir(), err))
		}
		if s.address != "" {
			if conn, err := net.Dial("tcp", s.address); err == nil {
				errs = append(errs, errors.Join(fmt.Errorf("something listens at %s", s.address), conn.Close()))
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		require.NoError(t, err)
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, "/run/meshcni-e2e") || strings.Contains(line, "/var/lib/kubelet/") {
				errs = append(errs, errors.New("mount "+line))
			}
		}
		return errors.Join(errs...)
	})
}

// kubectl runs kubectl on this machine, as whoever has read what `make cluster` prints.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(dir(), "bin", "kubectl"), args...)
	cmd.Dir = proctest.Root()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig(), "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "PATH="+filepath.Join(dir(), "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "kubectl %s: %s", strings.Join(args, " "), out)
	return string(out)
}

func requireCluster(t *testing.T, runtime string) {
	t.Helper()
	netnstest.Require(t, append([]netnstest.Need{netnstest.Root, netnstest.Binary("make")}, onenode.Machine(runtime).Needs...)...)
}

// testKept has a cluster as its user has it, from the first line to the interrupt.
func testKept(t *testing.T, runtime string) {
	requireCluster(t, runtime)
	values := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(values, []byte("podLabels: {from: values}\n"), 0o600))
	k := makeCluster(t, "cluster: up, until this is interrupted", "RUNTIME="+runtime, "VALUES="+values)
	for _, said := range []string{"1/4 ", "4/4 ", "building the checkout's image", "control plane after ", runtime + " after ", "node ready after ", "agent ready after ", "kubeconfig: " + kubeconfig() + "\n"} {
		assert.Contains(t, k.out.String(), said)
	}
	traces := tracesOf(t)

	info, err := os.Stat(kubeconfig())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	config, err := clientcmd.LoadFromFile(kubeconfig())
	require.NoError(t, err)
	server, err := url.Parse(config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server)
	require.NoError(t, err)
	traces.address = server.Host

	assert.Contains(t, kubectl(t, "get", "nodes", "-o", "wide"), " "+map[string]string{onenode.Containerd: "containerd", onenode.CRIO: "cri-o"}[runtime]+"://")
	assert.Regexp(t, `meshcni-node-\S+ +1/1 +Running`, kubectl(t, "get", "pods", "--namespace", "meshcni-system", "-l", "from=values"))
	kubectl(t, "apply", "-f", "examples/first-pod.yaml")
	kubectl(t, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/first", "--timeout=5m")
	assert.Regexp(t, `works +ipv4 outbound: .*: arrived at port 15001, with its original destination`, kubectl(t, "logs", "first", "--container", "application-validation"))
	// A stream, through the API server to the kubelet.
	assert.Contains(t, kubectl(t, "--namespace", "meshcni-system", "exec", "daemonset/meshcni-node", "--", "meshcni-node", "version"), "v0.0.0-e2e")
	assert.Contains(t, kubectl(t, "meshcni", "status"), onenode.NodeName+"  ready")
	out, err := exec.Command(filepath.Join(dir(), "bin", "on-node"), "cat", onenode.ConfList).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), `"type": "meshcni"`)

	require.NoError(t, syscall.Kill(-k.Process.Pid, syscall.SIGINT), "as a terminal does")
	<-k.ended
	assert.Contains(t, k.out.String(), "cluster: nothing of it is left\n")
	traces.assertNothingLeft(t)
}

// TestCluster: whoever has no cluster has one with the chart, usable from this machine, and nothing of it is left.
func TestCluster(t *testing.T) { testKept(t, onenode.Containerd) }

// TestKilled: nothing is left of a cluster whose outer process is killed, or whose make is, while it starts.
func TestKilled(t *testing.T) {
	requireCluster(t, onenode.Containerd)
	type kill struct {
		name string
		do   func(k *kept, s traces) error
	}
	for _, c := range longtest.Of([]kill{
		{"the outer process", func(_ *kept, s traces) error { return syscall.Kill(s.outer, syscall.SIGKILL) }},
		{"make", func(k *kept, _ traces) error { return syscall.Kill(k.Process.Pid, syscall.SIGKILL) }},
	}, kill{"make is asked to end", func(k *kept, _ traces) error { return syscall.Kill(k.Process.Pid, syscall.SIGTERM) }}) {
		t.Run(c.name, func(t *testing.T) {
			k := makeCluster(t, "cluster: control plane after ")
			traces := tracesOf(t)
			require.NoError(t, c.do(k, traces))
			<-k.ended
			traces.assertNothingLeft(t)
		})
	}
}

// TestEndsWhileItBuilds: what a step has started ends with the script, which is asked to end.
func TestEndsWhileItBuilds(t *testing.T) {
	requireCluster(t, onenode.Containerd)
	real, err := exec.LookPath("go")
	require.NoError(t, err)
	bin := t.TempDir()
	hangs := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *cmd/cluster*) sleep infinity & echo $! >%[1]s/.pid; mv %[1]s/.pid %[1]s/pid; wait ;; *) exec %[2]s \"$@\" ;; esac\n", bin, real)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte(hangs), 0o755)) //nolint:gosec // a program
	cmd := exec.Command(".ci/cluster")
	cmd.Dir, cmd.Env = proctest.Root(), append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Minute
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	var pid int
	waittest.Eventually(t, "the build has begun", func() error {
		text, err := os.ReadFile(filepath.Join(bin, "pid"))
		if err != nil {
			return errors.New(out.String())
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err
	})
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, cmd.Wait(), out.String())
	waittest.Eventually(t, "the build has ended", func() error {
		if syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
}

// TestRefuses: what is asked for wrongly is said before anything is built.
func TestRefuses(t *testing.T) {
	for variable, said := range map[string]string{
		"RUNTIME=docker": "RUNTIME=docker: containerd or crio",
		"VALUES=none.y":  "none.y: No such file or directory",
	} {
		cmd := exec.Command("make", "-s", "cluster", variable)
		cmd.Dir = proctest.Root()
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(out), said)
		assert.NotContains(t, string(out), "1/4")
	}
}
