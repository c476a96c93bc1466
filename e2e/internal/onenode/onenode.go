// Package onenode starts a real Kubernetes cluster of one node: etcd, API server, controller manager, scheduler, kubelet, a container
// runtime and runc, all unmodified, with the checkout's images and no registry. It has no kube-proxy and no DNS: the address of Service
// "kubernetes" is one of the node's own, at which the API server listens. All of it runs on a machine of package machine.
//
// The tests of package cluster use it, and `make cluster`.
package onenode

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/crio"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The node's name, and the addresses of the node and of Service "kubernetes". Both addresses are on the node's lo.
const (
	NodeName  = "node-1"
	NodeIP    = "10.89.0.1"
	ServiceIP = "10.77.0.1"
)

// NextTag is a second tag of the checkout's image, for an upgrade.
const NextTag = "next"

// The container runtimes.
const (
	Containerd = "containerd"
	CRIO       = "crio"
)

// Machine returns the options of the machine for a cluster with a runtime: [Containerd] or [CRIO].
func Machine(runtime string) machine.Options {
	empty, memory := containerd.Dirs()
	need := containerd.Need
	if runtime == CRIO {
		memory, need = crio.Memory(), crio.Need
	}
	return machine.Options{
		Needs: []netnstest.Need{
			kubetest.Servers,
			kubetest.Components("kube-controller-manager", "kube-scheduler", "kubelet"),
			need,
			netnstest.Need{Name: "helm (run .ci/tool helm) and kubectl (run .ci/kube kubectl)", Check: func() error {
				_, errHelm := Program("helm")
				_, errKubectl := Program("kubectl")
				return errors.Join(errHelm, errKubectl)
			}},
		},
		Addresses: []netip.Addr{netip.MustParseAddr(NodeIP), netip.MustParseAddr(ServiceIP)},
		Empty:     empty,
		Memory:    append(memory, "/var/lib/kubelet"),
	}
}

// Program finds one of the repository's tools, or else of the machine's. kubectl is best of the cluster's own version.
func Program(name string) (string, error) {
	if path, err := exec.LookPath(proctest.Cache("bin", name)); err == nil {
		return path, nil
	}
	if path, err := kubetest.Component(name); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is neither in %s nor on the PATH", name, proctest.Cache("bin"))
}

// Cluster is the running cluster.
type Cluster struct {
	Server     *kubetest.Server
	Kubeconfig string // path of the administrator's
	// Containerd is the container runtime, or nil if that is CRI-O.
	Containerd *containerd.Runtime
	// Processes are the cluster's programs by name, without those of the API server and the runtime.
	Processes map[string]*proctest.Process
	BootID    string // of the node's last boot

	socket string // the runtime's
}

// Boot starts everything with a runtime, [Containerd] or [CRIO], and returns when the node is ready for pods. It tells progress of each
// part that is up.
func Boot(runtime string, progress func(what string)) (*Cluster, error) {
	return boot(runtime, true, progress)
}

// BootBare is [Boot] with containerd and without the checkout's image and kubectl plugin.
func BootBare(progress func(what string)) (*Cluster, error) { return boot(Containerd, false, progress) }

func boot(runtime string, ours bool, progress func(what string)) (*Cluster, error) {
	c := &Cluster{Processes: map[string]*proctest.Process{}, socket: containerd.Socket}
	plugins := containerd.Plugins
	if runtime == CRIO {
		c.socket, plugins = crio.Socket, crio.Plugins
	}
	if err := installNetwork(plugins); err != nil {
		return nil, err
	}
	link := linkTools
	if ours {
		link = LinkPrograms
	}
	if err := link(userBin); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go func() { ready <- c.startRuntime(runtime, ours) }()

	server := filepath.Join(machine.Dir, "server")
	if err := os.MkdirAll(server, 0o700); err != nil {
		return nil, err
	}
	var err error
	c.Server, err = kubetest.Start(server, kubetest.Options{
		Bind: netip.IPv4Unspecified(), Advertise: netip.MustParseAddr(NodeIP), Port: 443,
		EnableAdmission: []string{"NodeRestriction"},
	})
	if err != nil {
		return nil, err
	}
	if c.Kubeconfig, err = c.WriteKubeconfig("admin", "token: "+kubetest.AdminToken); err != nil {
		return nil, err
	}
	progress("control plane")
	if err := c.startControllers(); err != nil {
		return nil, err
	}
	if err := <-ready; err != nil {
		return nil, err
	}
	progress(runtime)
	if err := c.StartKubelet(""); err != nil {
		return nil, err
	}
	progress("node ready")
	return c, nil
}

func (c *Cluster) startRuntime(runtime string, ours bool) (err error) {
	if runtime == CRIO {
		if err := hideHugePages(); err != nil {
			return err
		}
		_, err = crio.Start(crio.Options{Pause: image.Pause, Images: []crio.Image{
			{Archive: image.ToolArchive(), Name: image.Pause}, {Archive: image.ToolArchive(), Name: image.Tool},
			{Archive: image.OursArchive(), Name: image.Ours, As: []string{ChartImage, nextImage()}},
			{Archive: image.AcmeArchive(), Name: image.Acme},
		}})
		return err
	}
	images := []string{image.ToolArchive()}
	if ours {
		images = append(images, image.OursArchive(), image.AcmeArchive())
	}
	c.Containerd, err = containerd.Start(containerd.Options{Pause: image.Pause, LogLevel: "info", Images: images})
	if err != nil || !ours {
		return err
	}
	return NameImages(containerd.Ctr)
}

// hideHugePages has the kubelet see no sizes of huge pages where the machine has no control groups for them. It would give each container a
// limit, which containerd is told to pass over and CRI-O hands to runc.
func hideHugePages() error {
	const sizes = "/sys/kernel/mm/hugepages"
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), "hugetlb") {
		return err
	}
	if controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); strings.Contains(string(controllers), "hugetlb") {
		return nil
	}
	if _, err := os.Stat(sizes); os.IsNotExist(err) {
		return nil
	}
	if err := unix.Mount("tmpfs", sizes, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("hide the sizes of huge pages: %w", err)
	}
	return nil
}

// Start starts one of the cluster's programs, logging to NAME.log.
func (c *Cluster) Start(name, program string, args ...string) error {
	p, err := proctest.Start(proctest.Options{Dir: machine.Dir, Name: name}, program, args...)
	if err == nil {
		c.Processes[name] = p
	}
	return err
}

// WriteKubeconfig writes a kubeconfig for a user of a name with credentials, in YAML.
func (c *Cluster) WriteKubeconfig(name, credentials string) (path string, err error) {
	path = filepath.Join(machine.Dir, name+".kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: %[3]s, user: {%[4]s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: %[3]s}}]
current-context: e2e
`, c.Server.URL(), c.Server.CAFile(), name, credentials), 0o600)
}

// component writes the kubeconfig of a component that shows itself by a certificate.
func (c *Cluster) component(name, user string, groups ...string) (kubeconfig string, err error) {
	cert, key, err := c.Server.Issue(user, groups)
	if err != nil {
		return "", err
	}
	return c.WriteKubeconfig(name, fmt.Sprintf("client-certificate: %q, client-key: %q", cert, key))
}

// startControllers starts the controller manager and the scheduler.
func (c *Cluster) startControllers() error {
	for name, args := range map[string][]string{
		"kube-controller-manager": {
			"--service-account-private-key-file=" + c.Server.File("pki/sa.key"), "--root-ca-file=" + c.Server.CAFile(),
			"--use-service-account-credentials=true", "--allocate-node-cidrs=false",
		},
		"kube-scheduler": nil,
	} {
		program, err := kubetest.Component(name)
		if err != nil {
			return err
		}
		kubeconfig, err := c.component(name, "system:"+name)
		if err != nil {
			return err
		}
		args = append(args, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1")
		if err := c.Start(name, program, args...); err != nil {
			return err
		}
	}
	return nil
}

// ConfList is the path of the network's list on the node.
const ConfList = containerd.CNIConfDir + "/10-e2e.conflist"

// Network is the network's list as its owner wrote it. A program that writes JSON anew would not keep its blanks.
const Network = `{
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
func installNetwork(plugins string) error {
	for _, name := range []string{"ptp", "host-local", "portmap", "loopback"} {
		from, to := filepath.Join(plugins, name), filepath.Join(containerd.CNIBinDir, name)
		if out, err := exec.Command("cp", "--dereference", from, to).CombinedOutput(); err != nil {
			return fmt.Errorf("install plugin %s: %w: %s", name, err, out)
		}
	}
	return os.WriteFile(ConfList, []byte(Network), 0o644)
}

// ChartImage is the name of the image that the chart has when it is told that the image was imported: the checkout's, under the
// version of the next release.
var ChartImage = func() string {
	text, err := os.ReadFile(filepath.Join(proctest.Root(), "deploy", "helm", "meshcni", "Chart.yaml"))
	if err != nil {
		return ""
	}
	version := regexp.MustCompile(`(?m)^appVersion: *"?([^"\s]+)"?`).FindSubmatch(text)
	if version == nil {
		return ""
	}
	return repository() + ":" + string(version[1])
}()

func repository() string {
	name, _, _ := strings.Cut(image.Ours, ":")
	return name
}

func nextImage() string { return repository() + ":" + NextTag }

// NameImages gives the checkout's image the name that the chart has, and the next one.
func NameImages(ctr func(args ...string) (string, error)) error {
	_, err := ctr("images", "tag", "--force", image.Ours, ChartImage, nextImage())
	return err
}

// userBin has the programs that a user of the cluster brings along.
const userBin = machine.Dir + "/bin"

// LinkPrograms puts links to a user's programs into a directory that it makes.
func LinkPrograms(dir string) error {
	if err := linkTools(dir); err != nil {
		return err
	}
	return os.Symlink(image.KubectlPlugin(), filepath.Join(dir, "kubectl-meshcni"))
}

func linkTools(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"helm", "kubectl"} {
		path, err := Program(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Env returns the environment in which a user of the cluster works: KUBECONFIG, and a PATH with the programs.
func (c *Cluster) Env() []string {
	return []string{
		"KUBECONFIG=" + c.Kubeconfig, "CONTAINERD_ADDRESS=" + containerd.Socket, "CONTAINERD_NAMESPACE=k8s.io",
		"PATH=" + userBin + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HELM_CACHE_HOME=" + machine.Dir + "/helm/cache", "HELM_CONFIG_HOME=" + machine.Dir + "/helm/config", "HELM_DATA_HOME=" + machine.Dir + "/helm/data",
		// kubectl loses a command's output now and then over WebSockets: "Unknown stream id 1, discarding message".
		"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false",
	}
}

// Command returns a command that runs in the root of the repository, as a user of the cluster does.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	path, err := Program(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = proctest.Root(), append(os.Environ(), c.Env()...)
	return cmd, nil
}

// Try runs a command as [Cluster.Command] makes it, and returns what it printed, which is also in the error.
func (c *Cluster) Try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd, err := c.Command(ctx, name, args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
