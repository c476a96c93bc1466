package cluster_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/onenode"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// TestEnter: with the chart's defaults the agent may not enter pods, and a pod that kubectl meshcni makes on the node reads their
// rules; nothing of it is left.
func TestEnter(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "enter")
	install(t, c)
	s.create(t, pod{name: "cart"})
	s.ready(t, "cart")
	nothingLeft := func(t *testing.T) {
		t.Helper()
		eventually(t, soon, "nothing is left", func() error {
			if left := c.Run(t, "kubectl", "get", "pods", "-A", "-l", "meshcni.io/node-job", "-o", "name"); left != "" {
				return errors.New(left)
			}
			return nil
		})
	}

	step(t, c, "the agent may not", func(t *testing.T) {
		code, _, errs := c.meshcni(t, "show", "-n", s.namespace, "cart")
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, "(--enter reads them, by a short-lived pod on the node)\n")
		eventually(t, soon, "its record says that it is captured", func() error {
			code, out, errs := c.meshcni(t, "explain", "-n", s.namespace, "cart")
			if code != 0 || !strings.Contains(out, "live rules: not known: ") {
				return errors.New(out + errs)
			}
			return nil
		})
	})

	step(t, c, "a pod on the node does", func(t *testing.T) {
		code, out, errs := c.meshcni(t, "show", "-n", s.namespace, "cart", "--enter")
		require.Equal(t, 0, code, errs)
		assert.Regexp(t, `OUTPUT +1 +\d+ +\d+ +.*ISTIO_OUTPUT`, out)
		assert.Regexp(t, `making pod `+system+`/meshcni-job-\w+ on node node-1 to read the live rules of pod enter/cart\n`, errs)
		code, out, errs = c.meshcni(t, "explain", "-n", s.namespace, "cart", "--enter")
		assert.Equal(t, 0, code, out+errs)
		assert.Regexp(t, `live rules: [1-9]\d* of the mesh, 0 others\n`, out)
		assert.NotContains(t, out, "LOST")
		nothingLeft(t)
	})

	step(t, c, "it finds a rule that is gone", func(t *testing.T) {
		ns := netnsOf(t, s.namespace, "cart")
		out, err := exec.Command("nsenter", "--net="+ns, "iptables-nft", "-t", "nat", "-D", "OUTPUT", "-j", "ISTIO_OUTPUT").CombinedOutput()
		require.NoError(t, err, string(out))
		code, said, errs := c.meshcni(t, "explain", "-n", s.namespace, "cart")
		assert.Equal(t, 0, code, errs)
		assert.NotContains(t, said, "LOST", "the agent cannot see it")
		code, said, errs = c.meshcni(t, "explain", "-n", s.namespace, "cart", "--enter")
		assert.Equal(t, 1, code, errs)
		assert.Regexp(t, `LOST since ADD: .*OUTPUT`, said)
		nothingLeft(t)
	})

	step(t, c, "interrupted halfway", func(t *testing.T) {
		kubectl, err := onenode.Program("kubectl")
		require.NoError(t, err)
		cmd := exec.Command(kubectl, "meshcni", "show", "-n", s.namespace, "cart", "--enter", "--image", "localhost/none:1") // whose pod waits
		cmd.Dir, cmd.Env = proctest.Root(), append(os.Environ(), c.Env()...)
		var out bytes.Buffer
		cmd.Stdout = &out
		errs, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(errs)
		require.True(t, lines.Scan())
		assert.Contains(t, lines.Text(), "making pod ")
		eventually(t, soon, "the pod is there", func() error {
			if c.Run(t, "kubectl", "get", "pods", "-n", system, "-l", "meshcni.io/node-job", "-o", "name") == "" {
				return errors.New("no pod yet")
			}
			return nil
		})
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		var said []string
		for lines.Scan() {
			said = append(said, lines.Text())
		}
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit, out.String())
		assert.Equal(t, 1, exit.ExitCode())
		assert.Contains(t, strings.Join(said, "\n"), "interrupted")
		assert.NotContains(t, strings.Join(said, "\n"), "left behind")
		nothingLeft(t)
	})
	s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	uninstall(t, c)
	assertClean(t, c)
}
