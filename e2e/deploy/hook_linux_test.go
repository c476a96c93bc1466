package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestTheTestPodTellsTheTruth runs the commands of helm test's pod, as the users
// that they run as, in a network namespace like a pod's, beside a kubelet that
// probes it from outside: with the rules that the plugin would make all succeed, and
// without them both the application's and the proxy's say that redirection is missing.
func TestTheTestPodTellsTheTruth(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("ip"))
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && len(at) > 1; at = filepath.Dir(at) {
		require.NoError(t, os.Chmod(at, 0o755)) //nolint:gosec // other users read it
	}
	program := filepath.Join(dir, "meshcni-redirect")
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "../cmd/meshcni-redirect").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, dialect := range everyMesh {
		all, name := testedWith(t, dialect)
		pod := one[corev1.Pod](t, all, "Pod", name)
		file := filepath.Join(dir, dialect+".yaml")
		namespace := filepath.Join(dir, dialect+"-namespace.yaml")
		data := one[corev1.ConfigMap](t, all, "ConfigMap", name+"-pod").Data
		require.NoError(t, os.WriteFile(file, []byte(data["pod.yaml"]), 0o644))            //nolint:gosec // other users read it
		require.NoError(t, os.WriteFile(namespace, []byte(data["namespace.yaml"]), 0o644)) //nolint:gosec // likewise
		bare, captured := likeAPod(t), likeAPod(t)
		reports := filepath.Join(dir, dialect+"-reports")
		require.NoError(t, os.Mkdir(reports, 0o777))
		require.NoError(t, os.Chmod(reports, 0o777)) //nolint:gosec // as an emptyDir
		mounted := strings.NewReplacer("/etc/meshcni-test/pod.yaml", file, "/etc/meshcni-test/namespace.yaml", namespace, "/report/", reports+"/")
		check := func(ns *netnsexec.NetNS, c corev1.Container) (int, string) {
			require.Equal(t, []string{"/usr/local/bin/meshcni-redirect"}, c.Command)
			args := strings.Split(mounted.Replace(strings.Join(c.Args, "\n")), "\n")
			if ns.Path() == bare.Path() {
				defer func() { _ = os.Remove(filepath.Join(reports, "validate")) }()
				args = strings.Split(strings.ReplaceAll(strings.Join(args, "\n"), "--from-outside=1m", "--from-outside=1s"), "\n")
			}
			cmd := exec.Command(program, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
				Uid: uint32(*c.SecurityContext.RunAsUser), Gid: uint32(*c.SecurityContext.RunAsGroup), //nolint:gosec // ids are 32 bits
			}}
			return run(t, ns, cmd)
		}
		checks := append(pod.Spec.InitContainers, pod.Spec.Containers...)
		for _, c := range checks {
			code, says := check(bare, c)
			assert.Equal(t, 126, code, "%s, %s without rules: %s", dialect, c.Name, says)
		}
		code, says := run(t, captured, exec.Command(program, "apply", "--dialect="+dialect, "-f", file, "--namespace-file", namespace))
		require.Zero(t, code, "%s: %s", dialect, says)
		for _, c := range checks {
			code, says = check(captured, c)
			assert.Zero(t, code, "%s, %s: %s", dialect, c.Name, says)
			assert.Contains(t, says, "works    ipv4 outbound: tcp", "%s, %s: also what the init container saw, since helm shows the other's log alone", dialect, c.Name)
			want := "ipv4 outbound: tcp"
			if c.ReadinessProbe != nil {
				assert.EqualValues(t, 15002, c.ReadinessProbe.TCPSocket.Port.IntValue(), "the kubelet's")
				want = "ipv4 inbound: a connection of 10.9.9.1 to 10.9.9.2:15002 arrived at port"
			}
			assert.Contains(t, says, "works    "+want, "%s, %s", dialect, c.Name)
		}
	}
}

// likeAPod is a namespace with an address and a way out, which somebody outside connects to again and again.
func likeAPod(t testing.TB) *netnsexec.NetNS {
	t.Helper()
	ns, node := netnstest.New(t), netnstest.New(t)
	for _, step := range []struct {
		at   *netnsexec.NetNS
		line string
	}{
		{ns, "link add eth0 type veth peer name outside netns " + node.Path()},
		{ns, "link set eth0 up"}, {ns, "addr add 10.9.9.2/24 dev eth0"}, {node, "link set outside up"}, {node, "addr add 10.9.9.1/24 dev outside"},
		{ns, "route add default via 10.9.9.1"},
	} {
		code, says := run(t, step.at, exec.Command("ip", strings.Fields(step.line)...)) //nolint:gosec // the lines above
		require.Zero(t, code, "ip %s: %s", step.line, says)
	}
	kubelet, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		period := time.NewTicker(10 * time.Millisecond)
		defer period.Stop()
		for kubelet.Err() == nil {
			_ = node.Do(func() error {
				conn, err := new(net.Dialer).DialContext(kubelet, "tcp4", "10.9.9.2:15002")
				if err == nil {
					err = conn.Close()
				}
				return err
			})
			select {
			case <-kubelet.Done():
			case <-period.C:
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return ns
}

// run runs a program in the namespace.
func run(t testing.TB, ns *netnsexec.NetNS, cmd *exec.Cmd) (code int, says string) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Run(cmd)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), out.String()
	}
	require.NoError(t, err)
	return 0, fmt.Sprint(&out)
}
