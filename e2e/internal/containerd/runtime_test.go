package containerd_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

func TestMain(m *testing.M) {
	empty, memory := containerd.Dirs()
	machine.Main(m, machine.Options{
		Needs: []netnstest.Need{containerd.Need}, Empty: empty, Memory: memory,
		Build: func() error {
			_, err := image.Build()
			return err
		},
	})
}

const network = `{"cniVersion": "1.0.0", "name": "net", "plugins": [
	{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`

func TestPod(t *testing.T) {
	machine.Require(t)
	ctx := t.Context()
	require.NoError(t, os.WriteFile(filepath.Join(containerd.CNIConfDir, "10-net.conflist"), []byte(network), 0o600))
	for _, name := range []string{"ptp", "host-local", "loopback"} {
		require.NoError(t, os.Symlink(filepath.Join(containerd.Plugins, name), filepath.Join(containerd.CNIBinDir, name)))
	}
	r, err := containerd.Start(containerd.Options{Pause: image.Pause, Images: []string{image.ToolArchive()}})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Stop()) }()

	user := int64(1000)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "0000"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "app", Image: image.Tool, Args: []string{"serve", "8080"}, SecurityContext: &corev1.SecurityContext{RunAsUser: &user}},
		}},
	}
	s, err := r.RunPod(ctx, pod, nil)
	require.NoError(t, err, "%s", r.Tail(3000))
	ips, err := s.IPs(ctx)
	require.NoError(t, err)
	require.Len(t, ips, 1)
	assert.True(t, netip.MustParsePrefix("10.88.7.0/24").Contains(ips[0]))
	out, err := s.Exec(ctx, "app", image.ToolPath, "probe", "tcp:127.0.0.1:8080", "tcp:127.0.0.1:81")
	require.NoError(t, err)
	assert.Equal(t, "app:8080 orig=127.0.0.1:8080 peer=127.0.0.1\nrefused\n", out)
	status, err := s.Exec(ctx, "app", image.ToolPath, "cat", "/proc/self/status")
	require.NoError(t, err)
	assert.Contains(t, status, "Uid:\t1000\t1000")
	_, err = s.Exec(ctx, "app", image.ToolPath, "cat", "/none")
	require.ErrorContains(t, err, "no such file")

	netns, err := s.NetNS(ctx)
	require.NoError(t, err)
	require.FileExists(t, netns)
	r.Kill()
	require.NoError(t, r.Boot())
	require.NoError(t, r.RemoveAll(ctx))
	require.NoFileExists(t, netns)
	ids, err := r.Sandboxes(ctx)
	require.NoError(t, err)
	assert.Empty(t, ids)
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		assert.NotContains(t, line, "/sandboxes/", "left mounted")
	}
}
