package cluster_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/repair/integration/kubetest"
)

// nodeName is the name of the node; the only one, unless a test adds another.
const nodeName = "node-1"

// cluster is a real Kubernetes cluster of one node: etcd, API server, controller manager, scheduler, kubelet, containerd
// and runc, all unmodified, with our own images and no registry. It has no kube-proxy and no DNS: the address of Service
// "kubernetes" is one of the node's own, at which the API server listens. All of it runs on a machine of its own; see
// package machine.
type cluster struct {
	Server     *kubetest.Server
	Kubeconfig string // the path of the administrator's

	runtime   *containerd.Runtime
	processes map[string]*proctest.Process
	bootID    string            // of the node's last boot
	pristine  map[string]string // the node's files before anything was installed
	explained string            // the test whose failure was explained
}

var (
	startOnce sync.Once
	started   *cluster
)

// sharedCluster is the cluster of all tests. The first one to ask starts it; it ends with the test binary.
func sharedCluster(t testing.TB) *cluster {
	t.Helper()
	machine.Require(t)
	startOnce.Do(func() {
		c := &cluster{processes: map[string]*proctest.Process{}}
		c.boot(t)
		started = c
	})
	require.NotNil(t, started, "the cluster did not start; an earlier test says why")
	return started
}

// boot starts everything, and returns when the node is ready for pods.
func (c *cluster) boot(t testing.TB) {
	start := time.Now()
	require.NoError(t, installNetwork())
	require.NoError(t, bringPrograms())
	runtime := make(chan error, 1)
	go func() {
		var err error
		c.runtime, err = containerd.Start(containerd.Options{
			Pause: image.Pause, LogLevel: "info", Images: []string{image.ToolArchive(), image.OursArchive()},
		})
		if err == nil {
			err = nameImages(containerd.Ctr)
		}
		runtime <- err
	}()

	server := filepath.Join(machine.Dir, "server")
	require.NoError(t, os.MkdirAll(server, 0o700))
	s, err := kubetest.Start(server, kubetest.Options{
		Bind: netip.IPv4Unspecified(), Advertise: netip.MustParseAddr(nodeIP), Port: 443,
		EnableAdmission: []string{"NodeRestriction"},
	})
	require.NoError(t, err)
	c.Server = s
	c.Kubeconfig = c.kubeconfig(t, "admin", "token: "+kubetest.AdminToken)
	stage("control plane", start)

	c.startControllers(t)
	require.NoError(t, <-runtime)
	c.startKubelet(t, "")
	c.pristine, err = files()
	require.NoError(t, err)
	stage("node ready", start)
}

// start starts one of the cluster's programs, logging to NAME.log.
func (c *cluster) start(t testing.TB, name, program string, args ...string) *proctest.Process {
	t.Helper()
	p, err := proctest.Start(proctest.Options{Dir: machine.Dir, Name: name}, program, args...)
	require.NoError(t, err)
	c.processes[name] = p
	return p
}

// kubeconfig writes one with the given credentials, in YAML.
func (c *cluster) kubeconfig(t testing.TB, name, credentials string) (path string) {
	t.Helper()
	path = filepath.Join(machine.Dir, name+".kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: %[3]s, user: {%[4]s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: %[3]s}}]
current-context: e2e
`, c.Server.URL(), c.Server.CAFile(), name, credentials), 0o600))
	return path
}

// component writes the kubeconfig of a component that shows itself by a certificate.
func (c *cluster) component(t testing.TB, name, user string, groups ...string) (kubeconfig string) {
	t.Helper()
	cert, key := c.Server.Certificate(t, user, groups)
	return c.kubeconfig(t, name, fmt.Sprintf("client-certificate: %q, client-key: %q", cert, key))
}

// startControllers starts the controller manager and the scheduler.
func (c *cluster) startControllers(t testing.TB) {
	t.Helper()
	manager, err := kubetest.Component("kube-controller-manager")
	require.NoError(t, err)
	c.start(t, "kube-controller-manager", manager,
		"--kubeconfig="+c.component(t, "kube-controller-manager", "system:kube-controller-manager"),
		"--service-account-private-key-file="+c.Server.File("pki/sa.key"), "--root-ca-file="+c.Server.CAFile(),
		"--use-service-account-credentials=true", "--leader-elect=false", "--bind-address=127.0.0.1", "--allocate-node-cidrs=false")
	scheduler, err := kubetest.Component("kube-scheduler")
	require.NoError(t, err)
	c.start(t, "kube-scheduler", scheduler,
		"--kubeconfig="+c.component(t, "kube-scheduler", "system:kube-scheduler"), "--leader-elect=false", "--bind-address=127.0.0.1")
}

// stage prints one line of progress.
func stage(what string, since time.Time) {
	fmt.Printf("cluster: %s after %.1fs\n", what, time.Since(since).Seconds())
}

// confList is the path of the network's list on the node.
const confList = containerd.CNIConfDir + "/10-e2e.conflist"

// primary is the network's list as its owner wrote it. A program that writes JSON anew would not keep its blanks.
const primary = `{
  "cniVersion": "1.0.0",
  "name":  "e2e",
  "plugins": [
    {"type": "ptp", "ipMasq": false, "mtu": 1450,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
  ]
}
`

// installNetwork puts the network's plugins and its list on the node.
func installNetwork() error {
	for _, name := range []string{"ptp", "host-local", "portmap", "loopback"} {
		from, to := filepath.Join(containerd.Plugins, name), filepath.Join(containerd.CNIBinDir, name)
		if out, err := exec.Command("cp", "--dereference", from, to).CombinedOutput(); err != nil {
			return fmt.Errorf("install plugin %s: %w: %s", name, err, out)
		}
	}
	return os.WriteFile(confList, []byte(primary), 0o644)
}

// chartImage is the name of the image that the chart has when it is told that the image was imported: the checkout's, under the
// version of the next release.
var chartImage = func() string {
	text, err := os.ReadFile(filepath.Join(proctest.Root(), "deploy", "helm", "meshcni", "Chart.yaml"))
	if err != nil {
		return ""
	}
	version := regexp.MustCompile(`(?m)^appVersion: *"?([^"\s]+)"?`).FindSubmatch(text)
	if version == nil {
		return ""
	}
	repository, _, _ := strings.Cut(image.Ours, ":")
	return repository + ":" + string(version[1])
}()

// nextTag is a tag of the same image, for an upgrade.
const nextTag = "next"

// nameImages gives the checkout's image the name that the chart has, and the next one.
func nameImages(ctr func(args ...string) (string, error)) error {
	repository, _, _ := strings.Cut(chartImage, ":")
	_, err := ctr("images", "tag", "--force", image.Ours, chartImage, repository+":"+nextTag)
	return err
}
