//go:build linux

package installer_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/meshcni/meshcni/installer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func seen(files map[string]string) installer.Observed {
	net := fstest.MapFS{}
	for name, data := range files {
		net[name] = &fstest.MapFile{Data: []byte(data)}
	}
	return installer.Observed{
		Net: net, BinDirs: []installer.BinDir{{Path: "/host/opt/cni/bin"}},
		Credentials: installer.Credentials{Token: []byte("t"), CA: []byte("ca")},
	}
}

func wanted() installer.Config {
	c := installer.Default()
	c.KubernetesHost = "10.96.0.1"
	return c
}

const (
	list = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"a"}]}`
	both = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"a"},{"type":"meshcni"}]}`
	conf = `{"name":"n","cniVersion":"1.0.0","type":"a"}`
)

// The order is the promise: binary, kubeconfig, list; and back: list, kubeconfig, binary.
func TestPlanOrder(t *testing.T) {
	ops := func(s installer.Steps) (out []installer.Op) {
		for _, a := range s.Actions {
			out = append(out, a.Op)
		}
		return out
	}
	o := seen(map[string]string{"10-a.conf": conf})
	o.Stale = []string{"/host/etc/cni/net.d/.x.meshcni-tmp-1"}
	assert.Equal(t, []installer.Op{
		installer.OpRemoveTemp, installer.OpBinary, installer.OpKubeconfig, installer.OpCreate, installer.OpMoveAside,
	}, ops(installer.Plan(wanted(), installer.Installed, o)))

	o = seen(map[string]string{"10-a.conflist": both})
	o.BinDirs[0].Present, o.Kubeconfig = true, []byte("k")
	assert.Equal(t, []installer.Op{
		installer.OpReplace, installer.OpRemoveOther, installer.OpRemoveOther,
	}, ops(installer.Plan(wanted(), installer.Absent, o)))
	o.Attachments = []string{"n/c/eth0"}
	assert.Equal(t, []installer.Op{installer.OpReplace, installer.OpRemoveOther}, ops(installer.Plan(wanted(), installer.Absent, o)))
	o.Attachments, o.AttachmentsErr = nil, errors.New("unreadable")
	s := installer.Plan(wanted(), installer.Absent, o)
	assert.Equal(t, []installer.Op{installer.OpReplace}, ops(s), "what may name the binary cannot be seen")
	require.NotEmpty(t, s.Blocked)
	o.Net, o.NetErr = nil, errors.New("unreadable")
	s = installer.Plan(wanted(), installer.Absent, o)
	assert.Empty(t, s.Actions, "what may name the binary cannot be seen")
	require.NotEmpty(t, s.Blocked)
}

// Whatever is missing stops the plan before the list, which would name it.
func TestPlanStopsBeforeTheList(t *testing.T) {
	for code, given := range map[string]func(*installer.Config, *installer.Observed){
		"bin-dir":             func(_ *installer.Config, o *installer.Observed) { o.BinDirs[0].Err = errors.New("x") },
		"no-binary":           func(_ *installer.Config, o *installer.Observed) { o.SourceErr = errors.New("x") },
		"no-credentials":      func(_ *installer.Config, o *installer.Observed) { o.CredentialsErr = errors.New("x") },
		"no-api-server":       func(c *installer.Config, _ *installer.Observed) { c.KubernetesHost = "" },
		"conf-dir":            func(_ *installer.Config, o *installer.Observed) { o.Net, o.NetErr = nil, errors.New("x") },
		"unsupported-version": func(_ *installer.Config, o *installer.Observed) { o.Supports = []string{"0.4.0"} },
		"bad-entry":           func(c *installer.Config, _ *installer.Observed) { c.PluginConfig = "{" },
	} {
		c, o := wanted(), seen(map[string]string{"10-a.conflist": list})
		given(&c, &o)
		s := installer.Plan(c, installer.Installed, o)
		require.NotEmpty(t, s.Blocked, code)
		assert.Equal(t, code, s.Blocked[0].Code)
		assert.Empty(t, s.Target)
		for _, a := range s.Actions {
			assert.NotContains(t, []installer.Op{installer.OpReplace, installer.OpCreate, installer.OpMoveAside}, a.Op, code)
		}
	}
}

func TestPlanNotes(t *testing.T) {
	o := seen(map[string]string{"00-a.conflist": "", "10-a.conflist": `{"name":"n","plugins":[{"type":"a"}]}`})
	s := installer.Plan(wanted(), installer.Installed, o)
	require.Empty(t, s.Blocked)
	require.Len(t, s.Notes, 3)
	assert.Contains(t, s.Notes[0], "00-a.conflist")
	assert.Contains(t, s.Notes[1], "older than chaining")
	assert.Contains(t, s.Notes[2], `"a"`)
}

func ExamplePlan() {
	c := installer.Default()
	c.KubernetesHost = "10.96.0.1"
	steps := installer.Plan(c, installer.Installed, installer.Observed{
		Net: fstest.MapFS{"10-flannel.conflist": {Data: []byte(`{"name": "cbr0", "cniVersion": "1.0.0", "plugins": [{"type": "flannel"}]}`)}},
		BinDirs: []installer.BinDir{
			{Path: "/host/opt/cni/bin", Names: []string{"flannel"}},
		},
		Credentials: installer.Credentials{Token: []byte("t"), CA: []byte("ca")},
	})
	for _, a := range steps.Actions {
		fmt.Println(a)
	}
	fmt.Println(steps.Target, steps.Network)
	// Output:
	// binary /host/opt/cni/bin/meshcni from /opt/meshcni/bin/meshcni (binary-missing)
	// kubeconfig /var/run/meshcni/kubeconfig (kubeconfig-missing)
	// replace /host/etc/cni/net.d/10-flannel.conflist (entry-removed)
	// 10-flannel.conflist cbr0
}
