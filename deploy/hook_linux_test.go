package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestTheTestPodTellsTheTruth runs the commands of helm test's pod, as the users
// that they run as, in a network namespace like a pod's: with the rules that the
// plugin would make all succeed, and without them the first says that redirection
// is missing.
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
		mounted := strings.NewReplacer("/etc/meshcni-test/pod.yaml", file, "/etc/meshcni-test/namespace.yaml", namespace)
		check := func(ns *netnsexec.NetNS, c corev1.Container) (int, string) {
			require.Equal(t, []string{"/usr/local/bin/meshcni-redirect"}, c.Command)
			args := strings.Split(mounted.Replace(strings.Join(c.Args, "\n")), "\n")
			cmd := exec.Command(program, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
				Uid: uint32(*c.SecurityContext.RunAsUser), Gid: uint32(*c.SecurityContext.RunAsGroup), //nolint:gosec // ids are 32 bits
			}}
			return run(t, ns, cmd)
		}
		bare, captured := likeAPod(t), likeAPod(t)
		checks := append(pod.Spec.InitContainers, pod.Spec.Containers...)
		code, says := check(bare, checks[0])
		assert.Equal(t, 126, code, "%s without rules: %s", dialect, says)
		code, says = run(t, captured, exec.Command(program, "apply", "--dialect="+dialect, "-f", file, "--namespace-file", namespace))
		require.Zero(t, code, "%s: %s", dialect, says)
		for _, c := range checks {
			code, says = check(captured, c)
			assert.Zero(t, code, "%s, %s: %s", dialect, c.Name, says)
		}
	}
}

// likeAPod is a namespace with an address and a way out.
func likeAPod(t testing.TB) *netnsexec.NetNS {
	t.Helper()
	ns := netnstest.New(t)
	for line := range strings.Lines(`link add eth0 type veth peer name outside
link set eth0 up
link set outside up
addr add 10.9.9.2/24 dev eth0
route add default via 10.9.9.1`) {
		code, says := run(t, ns, exec.Command("ip", strings.Fields(line)...)) //nolint:gosec // the lines above
		require.Zero(t, code, "ip %s: %s", line, says)
	}
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
