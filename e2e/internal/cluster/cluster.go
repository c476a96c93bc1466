package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
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

// Node is the name of the only node.
const Node = "node-1"

// Cluster is the running cluster.
type Cluster struct {
	// Server is its API server.
	Server *kubetest.Server
	// Kubeconfig is the path of the administrator's.
	Kubeconfig string

	processes map[string]*proctest.Process
	pristine  map[string]string // the node's files before anything was installed
	explained string            // the test whose failure was explained
}

var shared struct {
	once    sync.Once
	cluster *Cluster
}

// Shared is the cluster of all tests. The first to ask starts it; it ends with the test binary.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	machine.Require(t)
	shared.once.Do(func() {
		c := &Cluster{processes: map[string]*proctest.Process{}}
		c.boot(t)
		shared.cluster = c
	})
	require.NotNil(t, shared.cluster, "the cluster did not start; an earlier test says why")
	return shared.cluster
}

// boot starts everything, and returns when the node is ready for pods.
func (c *Cluster) boot(t testing.TB) {
	start := time.Now()
	require.NoError(t, installNetwork())
	require.NoError(t, bringPrograms())
	started := make(chan error, 1)
	go func() {
		_, err := containerd.Start(containerd.Options{
			Pause: image.Pause, LogLevel: "info", Images: []string{image.ToolArchive(), image.OursArchive()},
		})
		if err == nil {
			err = nameImages()
		}
		started <- err
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
	require.NoError(t, <-started)
	c.startKubelet(t)
	c.pristine, err = files()
	require.NoError(t, err)
	stage("node ready", start)
}

// start starts one of the cluster's programs, logging to NAME.log.
func (c *Cluster) start(t testing.TB, name, program string, args ...string) *proctest.Process {
	t.Helper()
	p, err := proctest.Start(proctest.Options{Dir: machine.Dir, Name: name}, program, args...)
	require.NoError(t, err)
	c.processes[name] = p
	return p
}

// kubeconfig writes one with the given credentials, in YAML.
func (c *Cluster) kubeconfig(t testing.TB, name, credentials string) (path string) {
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
func (c *Cluster) component(t testing.TB, name, user string, groups ...string) (kubeconfig string) {
	t.Helper()
	cert, key := c.Server.Certificate(t, user, groups)
	return c.kubeconfig(t, name, fmt.Sprintf("client-certificate: %q, client-key: %q", cert, key))
}

// startControllers starts the controller manager and the scheduler.
func (c *Cluster) startControllers(t testing.TB) {
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
