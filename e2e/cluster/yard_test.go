package cluster_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const (
	// reports has a file of each pod: what its connections to outsideAt came to since the node's last boot.
	reports   = machine.Dir + "/reports"
	outsideAt = nodeIP + ":7070"

	direct   = "node"      // nobody redirected the connection
	captured = "app:15001" // the pod's proxy had it

	ownList = "/etc/cni/net.d/00-meshcni.conflist"
)

// yard has pods that connect from the moment they start, on a node that boots again and again.
type yard struct {
	shop
	boots int
}

func newYard(t *testing.T, c *cluster, namespace string) *yard {
	t.Helper()
	y := &yard{shop: newShop(t, c, namespace)}
	require.NoError(t, os.RemoveAll(reports))
	require.NoError(t, os.MkdirAll(reports, 0o755))
	require.NoError(t, os.Chmod(reports, 0o777), "for every user")
	l, err := net.Listen("tcp", outsideAt)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(direct))
			_ = conn.Close()
		}
	}()
	return y
}

// witness is a pod whose application connects at once, before its proxy listens.
func (y *yard) witness(name string, inMesh bool) string {
	annotations := "{}"
	if text, err := json.Marshal(y.mesh.annotations); inMesh && err == nil {
		annotations = string(text)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: %[2]s
  labels: {round: "%[3]d"}
  annotations: %[4]s
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: app
    image: %[5]s
    args: [witness, /reports, "%[6]s"]
    securityContext: {runAsUser: 1000}
    volumeMounts: [{name: reports, mountPath: /reports}]
  - name: %[7]s
    image: %[5]s
    args: [serve, "%[8]d", "%[9]d"]
    securityContext: {runAsUser: %[10]d, runAsGroup: %[10]d}
  volumes: [{name: reports, hostPath: {path: %[11]s}}]
---
`, name, y.namespace, y.boots, annotations, image.Tool, outsideAt, y.mesh.container, y.mesh.out, y.mesh.in, y.mesh.uid, reports)
}

// populate makes the pods that live through the boots: two that the scheduler has placed, one that is the kubelet's own, and one
// outside the mesh, which shows what an uncaptured connection comes to.
func (y *yard) populate(t *testing.T) {
	t.Helper()
	y.Apply(t, y.witness("web-1", true)+y.witness("web-2", true)+y.witness("outside", false))
	path := filepath.Join(staticPods, "early.yaml")
	require.NoError(t, os.WriteFile(path, []byte(y.witness("early", true)), 0o644))
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(path)) })
	y.assertCaptured(t, y.inMesh()...)
}

// inMesh are the names of the pods of the mesh that run now.
func (y *yard) inMesh() []string {
	names := []string{"web-1", "web-2", "early-" + nodeName}
	if y.boots > 0 {
		names = append(names, y.fresh()...)
	}
	return names
}

// fresh are the pods that are made while the node is down, and while it comes up.
func (y *yard) fresh() []string {
	return []string{fmt.Sprint("down-", y.boots), fmt.Sprint("racing-", y.boots)}
}

// networks are what becomes of the network's file around a boot, each with what is done before the runtime starts and after it and
// the kubelet have. Nobody keeps our entry.
var networks = []struct {
	name          string
	before, after bool
	gone          bool
}{
	{name: "its file is written before the runtime starts", before: true},
	{name: "its file is gone at first", gone: true, after: true},
	{name: "its file is written while pods start", after: true},
	{name: "its file is written before and after", before: true, after: true},
	{name: "its file stays"},
}

// boot takes the power away and lets the node come up. Meanwhile pods are deleted, and new ones made.
func (y *yard) boot(t *testing.T) {
	t.Helper()
	network := networks[y.boots%len(networks)]
	y.Processes["kubelet"].Kill()
	require.NoError(t, y.Containerd.LosePower("/run/meshcni"))
	old, err := filepath.Glob(reports + "/*")
	require.NoError(t, err)
	for _, path := range old {
		require.NoError(t, os.Remove(path))
	}
	if y.boots > 0 {
		y.kubectl(t, append([]string{"delete", "pods", "--force", "--grace-period=0", "--wait=false"}, y.fresh()...)...)
	}
	y.boots++
	fresh := y.fresh()
	// Another MTU, so that a list that is derived from this one is out of date.
	text := strings.Replace(primary, "1450", fmt.Sprint(1300+y.boots), 1)
	if network.gone {
		require.NoError(t, os.Remove(confList))
	}
	if network.before {
		writeList(t, text)
	}
	y.Apply(t, y.witness(fresh[0], true))
	require.NoError(t, y.Containerd.Boot())
	require.NoError(t, y.LaunchKubelet(""))
	y.Apply(t, y.witness(fresh[1], true))
	if network.after {
		writeList(t, text)
	}
	require.NoError(t, y.NodeReady())
	if network.after {
		writeList(t, text) // while pods start
	}
}

// said is what a pod's connections have come to since the boot, in order.
func said(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(reports, name))
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return strings.Fields(string(text))
}

// settled waits until each pod runs and it is clear whether it is captured, and returns those of the mesh that had a connection that
// was not.
func (y *yard) settled(t *testing.T, names ...string) (uncaptured []string) {
	t.Helper()
	eventually(t, soon, "all pods connect", func() error {
		var errs []error
		for _, name := range append([]string{"outside"}, names...) {
			lines := said(t, name)
			if len(lines) == 0 || lines[len(lines)-1] != direct && lines[len(lines)-1] != captured {
				errs = append(errs, fmt.Errorf("%s: %q", name, lines))
			}
		}
		return errors.Join(errs...)
	})
	assert.Contains(t, said(t, "outside"), direct, "what is not redirected is seen")
	for _, name := range names {
		if lines := said(t, name); slices.Contains(lines, direct) {
			uncaptured = append(uncaptured, name)
			t.Logf("boot %d: %s: %q", y.boots, name, lines)
		}
	}
	return uncaptured
}

// assertCaptured holds the pods to have made no connection past their proxies, and to take none.
func (y *yard) assertCaptured(t *testing.T, names ...string) {
	t.Helper()
	assert.Empty(t, y.settled(t, names...), "boot %d: pods of the mesh that ran uncaptured", y.boots)
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct{ PodIP string }
		}
	}
	ips := map[string]string{}
	eventually(t, soon, "the addresses are those of this boot", func() error {
		require.NoError(t, json.Unmarshal([]byte(y.kubectl(t, "get", "pods", "-o", "json")), &list))
		for _, p := range list.Items {
			ips[p.Metadata.Name] = p.Status.PodIP
		}
		var errs []error
		for _, name := range names {
			if got, err := answer(ips[name]); err != nil || !strings.HasPrefix(got, fmt.Sprintf("app:%d ", y.mesh.in)) {
				errs = append(errs, fmt.Errorf("into %s: %q: %w", name, got, cmp.Or(err, errors.New("not an answer of the proxy"))))
			}
		}
		return errors.Join(errs...)
	})
}

// answer connects to a pod's port 8080, at which only a proxy can answer.
func answer(ip string) (string, error) {
	at, err := netip.ParseAddr(ip)
	if err != nil {
		return "", err
	}
	conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(at, 8080).String(), netnstest.Patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	text := make([]byte, 200)
	n, err := conn.Read(text)
	return string(text[:n]), err
}

// collect removes the sandboxes of earlier boots, as the kubelet does once a minute. Until then their attachments need the plugin.
func (y *yard) collect(t *testing.T) {
	t.Helper()
	gone := &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_NOTREADY}}
	list, err := y.Containerd.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{Filter: gone})
	require.NoError(t, err)
	for _, s := range list.GetItems() {
		_, err := y.Containerd.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: s.Id})
		require.NoError(t, err)
		_, err = y.Containerd.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
		require.NoError(t, err)
	}
}

// leave takes all away, and holds the node to what it was before.
func (y *yard) leave(t *testing.T) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(staticPods, "early.yaml")))
	y.kubectl(t, "wait", "--for=delete", "pod/early-"+nodeName, "--timeout=5m")
	y.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	y.collect(t)
	writeList(t, primary)
	y.shop.leave(t)
}
