package kubectlcmd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// TestMounts: the deepest mount over a path counts, and what is no directory of the node has none behind it.
func TestMounts(t *testing.T) {
	host := func(dir string) corev1.VolumeSource {
		return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}
	}
	mounts := mountsOf(&corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "opt", VolumeSource: host("/opt")}, {Name: "bin", VolumeSource: host("/var/lib/bin/")}, {Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}}, &corev1.Container{VolumeMounts: []corev1.VolumeMount{
		{Name: "opt", MountPath: "/host/opt/"}, {Name: "bin", MountPath: "/host/opt/cni/bin", ReadOnly: true, SubPath: "now"}, {Name: "empty", MountPath: "/host/opt/tmp"},
	}})
	for at, want := range map[string]string{
		"/host/opt": "/opt", "/host/opt/cni": "/opt/cni", "/host/opt/cni/bin": "/var/lib/bin/now", "/host/opt/cni/bin/a": "/var/lib/bin/now/a", "/host/opt/cni/bins": "/opt/cni/bins",
		"/host/opt/tmp": "", "/host/optical": "", "/etc": "",
	} {
		got, readOnly := behind(mounts, at)
		assert.Equal(t, want, got, at)
		assert.Equal(t, strings.HasPrefix(at, "/host/opt/cni/bin") && at != "/host/opt/cni/bins", readOnly, at)
	}
	assert.Empty(t, mountsOf(&corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: host("/x")}}},
		&corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/x", SubPathExpr: "$(A)"}}})[0].host, "which of its directories is not known")
}

// TestOnHost: the deepest mount says where a directory of an agent is on the host, as it does for check.
func TestOnHost(t *testing.T) {
	host := func(dir string) corev1.VolumeSource {
		return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}
	}
	agent := &corev1.PodSpec{
		Volumes:    []corev1.Volume{{Name: "etc", VolumeSource: host("/etc")}, {Name: "conf", VolumeSource: host("/data/cni")}},
		Containers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "etc", MountPath: "/host/etc"}, {Name: "conf", MountPath: "/host/etc/cni/net.d"}}}},
	}
	for dir, want := range map[string]string{
		"/host/etc/cni/net.d/": "/data/cni", "/host/etc/other": "/etc/other", "/host/run/meshcni": "/run/meshcni", "/hostile": "/hostile", "/run/meshcni": "/run/meshcni",
	} {
		assert.Equal(t, want, onHost(agent, dir), dir)
	}
}

// added gathers what add adds, by code.
func added(add func(*findings)) map[status.Code][]string {
	f := &findings{product: own, known: map[[2]string]*finding{}}
	add(f)
	all := map[status.Code][]string{}
	for _, x := range f.all {
		all[x.Code] = append(all[x.Code], x.Level+": "+x.Text)
	}
	return all
}

// TestCheckPlaces: each way in which a directory is not what the agent needs is a finding, and a sound node has none.
func TestCheckPlaces(t *testing.T) {
	mounts := []mounted{
		{at: "/host/etc/cni/net.d", host: "/etc/cni/net.d"}, {at: "/host/opt/cni/bin", host: "/opt/cni/bin"}, {at: "/var/run/meshcni", host: "/var/run/meshcni"}, {at: "/host/var/lib/cni", host: "/var/lib/cni", readOnly: true},
	}
	sane := func() agentapi.Node {
		n := agentapi.Node{}
		n.Places = []agentapi.Place{
			{Flag: "cni-bin-dir", Path: "/host/opt/cni/bin", Host: "/opt/cni/bin", Writes: true}, {Flag: "cni-conf-dir", Path: "/host/etc/cni/net.d", Host: "/etc/cni/net.d", Writes: true},
			{Flag: "cni-cache-dir", Path: "/host/var/lib/cni", Host: "/var/lib/cni"}, {Flag: "run-dir", Path: "/var/run/meshcni", Host: "/var/run/meshcni", Writes: true},
		}
		n.BinDirs = []agentapi.BinDir{{Path: "/host/opt/cni/bin", Plugin: agentapi.Current}}
		n.Installed.Config = json.RawMessage(kubectltest.Entry)
		return n
	}
	for name, test := range map[string]struct {
		change func(*agentapi.Node, []mounted)
		want   map[status.Code][]string
	}{
		"sound":        {func(*agentapi.Node, []mounted) {}, map[status.Code][]string{}},
		"an older one": {func(n *agentapi.Node, _ []mounted) { n.About = agentapi.About{Installed: n.Installed} }, map[status.Code][]string{}},
		"no mount": {func(_ *agentapi.Node, m []mounted) { m[0].at = "/elsewhere" }, map[status.Code][]string{
			codePlaceNotMounted: {"error: --cni-conf-dir /host/etc/cni/net.d: the agent's pod mounts no directory of the node there"},
		}},
		"read-only": {func(_ *agentapi.Node, m []mounted) { m[1].readOnly = true }, map[status.Code][]string{
			codePlaceUnusable: {"error: --cni-bin-dir /host/opt/cni/bin: the agent's pod mounts it read-only, and the agent has to write to it"},
		}},
		"unusable": {func(n *agentapi.Node, _ []mounted) { n.Places[2].Error = "it is not there" }, map[status.Code][]string{
			codePlaceUnusable: {"warning: --cni-cache-dir /host/var/lib/cni: it is not there"},
		}},
		"another directory": {func(_ *agentapi.Node, m []mounted) { m[0].host = "/etc/other" }, map[status.Code][]string{
			codePlaceDiffers: {"error: --cni-conf-dir /host/etc/cni/net.d: the agent takes it for the node's /etc/cni/net.d, and its pod mounts the node's /etc/other there"},
		}},
		"another than the entry's": {func(n *agentapi.Node, _ []mounted) {
			n.Installed.Config = json.RawMessage(strings.NewReplacer(`"/var/run/meshcni"`, `"/run/old"`, `"/opt/cni/bin"`, `"/usr/lib/cni"`).Replace(kubectltest.Entry))
		}, map[status.Code][]string{codePlaceDiffers: {
			"error: the plugin's entry has run_dir /run/old, and the agent's --run-dir is the node's /var/run/meshcni",
			"error: the plugin's entry has cni_bin_dir /usr/lib/cni, and the agent's --cni-bin-dir is the node's /opt/cni/bin",
		}}},
		"programs": {func(n *agentapi.Node, _ []mounted) {
			n.BinDirs = []agentapi.BinDir{
				{Path: "/a", Plugin: agentapi.Missing, Lacks: []string{"bridge", "x"}}, {Path: "/b", Plugin: agentapi.Another, Lacks: []string{"bridge"}},
			}
		}, map[status.Code][]string{
			codeProgramMissing:   {"error: /a has no program of the plugin that can be run: where the runtime looks there, no pod starts"},
			codeProgramDiffers:   {"warning: the plugin's program in /b is not the one that the agent installs"},
			codePluginsElsewhere: {"warning: the network's list names bridge, and no directory of --cni-bin-dir has that: either no pod starts, or the runtime looks for plugins elsewhere"},
		}},
		"one unread": {func(n *agentapi.Node, _ []mounted) {
			n.BinDirs = []agentapi.BinDir{{Path: "/a", Error: "permission denied"}, {Path: "/b", Plugin: agentapi.Current, Lacks: []string{"bridge"}}}
		}, map[status.Code][]string{codePlaceUnusable: {"unknown: --cni-bin-dir /a cannot be read, so nothing is known of the programs there: permission denied"}}},
	} {
		t.Run(name, func(t *testing.T) {
			n, m := sane(), append([]mounted{}, mounts...)
			test.change(&n, m)
			assert.Equal(t, test.want, added(func(f *findings) { f.places("node/a", m, n) }))
		})
	}
}
