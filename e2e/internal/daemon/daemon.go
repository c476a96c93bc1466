// Package daemon runs a container runtime's daemon for a test and speaks CRI to it: what is the same for each runtime.
// Packages containerd and crio have what differs.
package daemon

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// Command says how the daemon is run.
type Command struct {
	// Name names the daemon in errors and its log.
	Name string
	// Socket is the path where it serves the CRI.
	Socket string
	// Env is added to the environment.
	Env []string
	// Program and Args are what runs.
	Program string
	Args    []string
}

// Daemon is a runtime's daemon, running or not, with a client.
type Daemon struct {
	cri.RuntimeServiceClient

	command Command
	process *proctest.Process
	conn    *grpc.ClientConn
}

// New returns a daemon that is not running yet.
func New(c Command) (*Daemon, error) {
	conn, err := grpc.NewClient("unix://"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, err
	}
	return &Daemon{RuntimeServiceClient: cri.NewRuntimeServiceClient(conn), command: c, conn: conn}, nil
}

// Boot starts the daemon and waits until it answers. The caller stops it, with [Daemon.Kill].
func (d *Daemon) Boot() (err error) {
	c := d.command
	d.process, err = proctest.Start(proctest.Options{Dir: machine.Dir, Name: c.Name, Env: c.Env}, c.Program, c.Args...)
	if err != nil {
		return err
	}
	return d.process.WaitFor(5*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		d.conn.ResetConnectBackoff()
		_, err := d.Version(ctx, &cri.VersionRequest{})
		return err
	})
}

// Kill kills the daemon. Containers keep running.
func (d *Daemon) Kill() { d.process.Kill() }

// Pid is its present process.
func (d *Daemon) Pid() int { return d.process.Pid() }

// Log is the daemon's log so far, of all its runs.
func (d *Daemon) Log() string { return d.process.Log() }

// NetworkReady returns nil if pods with a network of their own can start, or what the runtime says against it. A kubelet
// starts no such pod then.
func (d *Daemon) NetworkReady(ctx context.Context) error {
	status, err := d.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range status.GetStatus().GetConditions() {
		if c.Type == cri.NetworkReady && !c.Status {
			return fmt.Errorf("network is not ready: %s: %s", c.Reason, c.Message)
		}
	}
	return nil
}

// UserNamespaces reports whether pods can have user namespaces of their own.
func (d *Daemon) UserNamespaces(ctx context.Context) (bool, error) {
	status, err := d.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return false, err
	}
	for _, h := range status.GetRuntimeHandlers() {
		if h.GetName() == "" { // the one that pods get which ask for none
			return h.GetFeatures().GetUserNamespaces(), nil
		}
	}
	return false, nil // a runtime that knows none of them tells of no handlers
}
