//go:build linux

package installer

import (
	"errors"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/status"
)

func snapshotOf(files map[string]string) *snapshot {
	all, s := fstest.MapFS{}, &snapshot{dirs: map[string][]fs.DirEntry{}, files: map[string]snapshotFile{}}
	for name, data := range files {
		all[name], s.files[name] = &fstest.MapFile{}, snapshotFile{data: []byte(data)}
	}
	s.dirs["."], _ = all.ReadDir(".")
	return s
}

func seen(files map[string]string) observed {
	return observed{
		conf: snapshotOf(files), binDirs: []BinDir{{Path: "/host/opt/cni/bin", programs: map[string]program{"a": {}}}},
		credentials: credentials{token: parseToken("t"), ca: []byte("ca")},
	}
}

func wanted() Config {
	c := Default(meshcni.Identity{})
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
	ops := func(s Plan) (out []op) {
		for _, a := range s.actions {
			out = append(out, a.Op)
		}
		return out
	}
	o := seen(map[string]string{"10-a.conf": conf})
	o.stale = []string{"/host/etc/cni/net.d/.x.cni-tmp-1"}
	assert.Equal(t, []op{
		opRemoveTemp, opBinary, opKubeconfig, opCreate, opMoveAside,
	}, ops(planInstall(wanted(), o)))

	o = seen(map[string]string{"10-a.conflist": both})
	o.binDirs[0].programs, o.kubeconfig = map[string]program{pluginName: {}}, []byte("k")
	assert.Equal(t, []op{opReplace}, ops(planUninstall(wanted(), o)))
	o.conf = snapshotOf(map[string]string{"10-a.conflist": list})
	s := planUninstall(wanted(), o)
	assert.Equal(t, []op{opRemoveOther, opRemoveOther}, ops(s))
	assert.Equal(t, []string{"/var/run/meshcni/kubeconfig", "/host/opt/cni/bin/meshcni"}, []string{s.actions[0].Path, s.actions[1].Path})
	o.attachments = []string{"n/c/eth0"}
	assert.Equal(t, []op{opRemoveOther}, ops(planUninstall(wanted(), o)))
	o.attachments, o.attachmentsErr = nil, errors.New("unreadable")
	s = planUninstall(wanted(), o)
	assert.Empty(t, s.actions, "what may name the binary cannot be seen")
	require.NotEmpty(t, s.Blocked)
	o.conf, o.confErr = nil, errors.New("unreadable")
	s = planUninstall(wanted(), o)
	assert.Empty(t, s.actions, "what may name the binary cannot be seen")
	require.NotEmpty(t, s.Blocked)
}

// Whatever is missing stops the plan before the list, which would name it.
func TestPlanStopsBeforeTheList(t *testing.T) {
	for code, given := range map[status.Code]func(*Config, *observed){
		"bin-dir":             func(_ *Config, o *observed) { o.binDirs[0].Err = errors.New("x") },
		"no-binary":           func(_ *Config, o *observed) { o.sourceErr = errors.New("x") },
		"no-credentials":      func(_ *Config, o *observed) { o.credentialsErr = errors.New("x") },
		"no-api-server":       func(c *Config, _ *observed) { c.KubernetesHost = "" },
		"conf-dir":            func(_ *Config, o *observed) { o.conf, o.confErr = nil, errors.New("x") },
		"unsupported-version": func(_ *Config, o *observed) { o.supports = []string{"0.4.0"} },
		"bad-entry":           func(c *Config, _ *observed) { c.PluginConfig = "{" },
	} {
		c, o := wanted(), seen(map[string]string{"10-a.conflist": list})
		given(&c, &o)
		s := planInstall(c, o)
		require.NotEmpty(t, s.Blocked, code)
		assert.Equal(t, code, s.Blocked[0].Code)
		assert.Empty(t, s.Target)
		for _, a := range s.actions {
			assert.NotContains(t, []op{opReplace, opCreate, opMoveAside}, a.Op, code)
		}
	}
}

func TestPlanNotes(t *testing.T) {
	o := seen(map[string]string{"00-a.conflist": "", "10-a.conflist": `{"name":"n","plugins":[{"type":"a"}]}`})
	o.binDirs[0].programs = nil
	s := planInstall(wanted(), o)
	require.Empty(t, s.Blocked)
	require.Len(t, s.Notes, 3)
	assert.Contains(t, s.Notes[0], "00-a.conflist")
	assert.Contains(t, s.Notes[1], `not-whole: with /host/etc/cni/net.d/10-a.conflist no pod can start: 10-a.conflist names the plugin "a": there is no such program in /host/opt/cni/bin`)
	assert.Contains(t, s.Notes[2], "older than chaining")
}
