// Command cluster keeps a cluster of one node up until it is interrupted, with the checkout's image and chart installed: `make cluster`,
// by way of .ci/cluster. The cluster is on a machine of its own; see package machine. Nothing of it is left when this program ends,
// however that happens.
//
// While it runs, .cache/cluster has a kubeconfig for the real machine, and in bin the programs that go with it. The API server is
// reached at a port of the real machine's 127.0.0.1: the program there hands its listener to the one on the cluster's machine, which
// passes the connections on.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/e2e/internal/onenode"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

var (
	runtime = flag.String("runtime", onenode.Containerd, "container runtime: "+onenode.Containerd+" or "+onenode.CRIO)
	values  = flag.String("values", "", "file of the chart's values")
)

func main() {
	flag.Parse()
	code, err := run()
	switch {
	case errors.Is(err, machine.ErrInterrupted):
		fmt.Println("cluster: nothing of it is left")
		code = 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run() (code int, err error) {
	if *runtime != onenode.Containerd && *runtime != onenode.CRIO {
		return 2, fmt.Errorf("runtime %q: neither %s nor %s", *runtime, onenode.Containerd, onenode.CRIO)
	}
	o := onenode.Machine(*runtime)
	o.Build = func() error {
		if err := o.Missing(); err != nil {
			return err
		}
		if err := lock(); err != nil {
			return err
		}
		return image.BuildTelling(func(what string) { fmt.Println("cluster: building " + what) })
	}
	o.Hand, o.Started = hand, started
	o.Swept = func() error { return os.RemoveAll(dir()) }
	return machine.Run(func() int {
		if err := keep(); err != nil {
			fmt.Fprintln(os.Stderr, "cluster:", err)
			return 1
		}
		return 0
	}, o)
}

// dir is the directory on the real machine of what goes with the cluster.
func dir() string { return proctest.Cache("cluster") }

// lock makes the directory, locks it for this process, and empties it of what a power failure left. One cluster at a time is up in a
// checkout, since all have these paths.
func lock() error {
	if err := os.MkdirAll(dir(), 0o700); err != nil {
		return err
	}
	d, err := unix.Open(dir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // it stays open, and the lock goes with the process
	if err != nil {
		return fmt.Errorf("open %s: %w", dir(), err)
	}
	if err := unix.Flock(d, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another cluster of this checkout is up: lock %s: %w", dir(), err)
	}
	return errors.Join(os.RemoveAll(kubeconfig()), os.RemoveAll(filepath.Join(dir(), "bin")))
}

// kubeconfig is the path of the kubeconfig on the real machine.
func kubeconfig() string { return filepath.Join(dir(), "kubeconfig") }

// hand opens, on the real machine, what the cluster's machine is to have of it: the port, and the kubeconfig, which is below no path
// that is surely the same there.
func hand() ([]*os.File, error) {
	if err := onenode.LinkPrograms(filepath.Join(dir(), "bin")); err != nil {
		return nil, err
	}
	config, err := os.OpenFile(kubeconfig(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	port, err := l.(*net.TCPListener).File()
	return []*os.File{port, config}, err
}

// started writes the script by which a user of the real machine works on the node, and gives the files to whoever called sudo.
func started(pid int) error {
	script := fmt.Sprintf("#!/bin/sh\n# Runs a command on the cluster's node, or a shell.\nexec nsenter --target %d --mount --net --pid -- \"${@:-sh}\"\n", pid)
	if err := os.WriteFile(filepath.Join(dir(), "bin", "on-node"), []byte(script), 0o755); err != nil {
		return err
	}
	uid, err := strconv.Atoi(os.Getenv("SUDO_UID"))
	if err != nil {
		return nil // nobody did
	}
	return errors.Join(os.Chown(dir(), uid, -1), os.Chown(kubeconfig(), uid, -1))
}

// keep starts the cluster and keeps it up. It runs on the cluster's machine.
func keep() error {
	start := time.Now()
	progress := func(what string) { fmt.Printf("cluster: %s after %.0fs\n", what, time.Since(start).Seconds()) }
	handed := machine.Handed()
	l, err := net.FileListener(handed[0])
	if err != nil {
		return err
	}
	c, err := onenode.Boot(*runtime, progress)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forward(l, c.Server.Address().String()) }()
	if err := writeKubeconfig(handed[1], c.Server, l.Addr().String()); err != nil {
		return err
	}
	if err := install(c, progress); err != nil {
		return err
	}
	fmt.Printf(`cluster: up, until this is interrupted (ctrl-c)
  kubeconfig: %[1]s
  in another shell:
    export KUBECONFIG=%[1]s PATH=%[2]s/bin:$PATH
    kubectl get pods --all-namespaces
    kubectl apply -f examples/first-pod.yaml
    on-node ls /etc/cni/net.d    # a command on the node, or a shell; as root
`, kubeconfig(), dir())
	return <-ended
}

// install installs the chart, as docs/getting-started.md does.
func install(c *onenode.Cluster, progress func(string)) error {
	const system = "meshcni-system"
	args := []string{"install", "meshcni", "deploy/helm/meshcni", "--namespace", system, "--create-namespace", "--set", "image.registry=" + image.Registry}
	if *values != "" {
		args = append(args, "--values", *values)
	}
	if *runtime == onenode.CRIO && !lowersOOMScore() {
		// The kubelet gives pods of class system-node-critical a score that not every root may give, as one in a container may not.
		// containerd can be told to be content with the lowest that there is, CRI-O cannot.
		args = append(args, "--set", "priorityClassName=system-cluster-critical")
	}
	if _, err := c.Try("helm", args...); err != nil {
		return err
	}
	progress("chart installed")
	if _, err := c.Try("kubectl", "--namespace", system, "rollout", "status", "daemonset/meshcni-node", "--timeout=5m"); err != nil {
		// Perhaps it is what the values are to show: a user looks for the cause with kubectl.
		fmt.Fprintln(os.Stderr, "cluster: the agent is not ready, the cluster stays up nevertheless:", err)
		return nil
	}
	progress("agent ready")
	return nil
}

// lowersOOMScore reports whether this machine lets processes have a lower out-of-memory score.
func lowersOOMScore() bool {
	const path = "/proc/self/oom_score_adj"
	was, err := os.ReadFile(path)
	if err != nil || os.WriteFile(path, []byte("-999"), 0) != nil {
		return false
	}
	return os.WriteFile(path, was, 0) == nil
}

// writeKubeconfig writes the administrator's kubeconfig for clients that reach the API server at an address.
func writeKubeconfig(file *os.File, s *kubetest.Server, address string) error {
	ca, err := os.ReadFile(s.CAFile())
	if err != nil {
		return err
	}
	const name = "meshcni"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + address, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: kubetest.AdminToken}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	text, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}

// forward passes each connection of a listener on to an address, until the listener fails.
func forward(l net.Listener, address string) error {
	for {
		from, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = from.Close() }()
			to, err := net.Dial("tcp", address)
			if err != nil {
				return // the client sees that it is closed
			}
			defer func() { _ = to.Close() }()
			done := make(chan struct{}, 2)
			for _, ends := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(ends[0], ends[1])
					_ = ends[0].(*net.TCPConn).CloseWrite()
					done <- struct{}{}
				}()
			}
			<-done
			<-done
		}()
	}
}
