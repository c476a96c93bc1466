// Package kubectlcmd implements the command line of kubectl-meshcni, which kubectl runs as "kubectl meshcni". It asks the API
// server, with the rights of whoever runs it, and through it the agents of the nodes. It changes nothing, except that "test"
// and the flag --enter make pods and delete them. A [Program] with other dialects is the plugin of your own mesh.
package kubectlcmd

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/api/apianswer"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/mesh"
)

// The exit codes.
const (
	// exitOK means that all is well, or that what was asked for has been printed.
	exitOK = cli.ExitOK
	// exitWrong means that something needs attention, or that the command failed.
	exitWrong = cli.ExitFailed
	// exitUsage means that the command line is wrong.
	exitUsage = cli.ExitUsage
	// exitUnknown means that nothing is known to be wrong, and something could not be found out.
	exitUnknown = 3
)

// Program is the kubectl plugin. The zero value is kubectl-meshcni with no input, whose output is discarded.
type Program struct {
	// Identity is the product's, by which its agents are found.
	Identity meshcni.Identity
	// Dialects are those whose pods can be explained. Nil means those of this module.
	Dialects []dialect.Dialect
	// Facts describe your own meshes for people and commands, beside their dialects. This module's are known.
	Facts mesh.List
	// Env looks up an environment variable, like os.LookupEnv; KUBECONFIG and the variables of a proxy are read from the process's
	// own. Nil: none is set.
	Env func(name string) (string, bool)
	// Nil Stdin is empty. Nil Stdout and Stderr discard.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Migrate makes the command of kubectl-meshcni-migrate, in place of this package's; see that module. Nil: this package's.
	Migrate func(*kubectl.Cluster) *cobra.Command

	connect func(*genericclioptions.ConfigFlags) (*rest.Config, kubernetes.Interface, error)
	ask     func(*rest.Config) asker
	// besides finds another program, and become runs it.
	besides func(name string) (path string, err error)
	become  func(path string, args []string) error
}

// Exec runs the program with the arguments, environment and streams of this process, until SIGINT or SIGTERM, and then exits. It
// does not return.
func (p Program) Exec() {
	p.Env, p.Stdin, p.Stdout, p.Stderr = os.LookupEnv, os.Stdin, os.Stdout, os.Stderr
	cli.Exec(p.Main)
}

// Main runs the program with args, which do not include the program's name, and returns its exit code.
func (p Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	name := p.Identity.KubectlProgram()
	if p.Migrate != nil {
		name += "-migrate"
	}
	if cli.Invalid(p.Stderr, name, p.Identity.Validate(), dialect.Validate(p.Dialects)) {
		return exitWrong
	}
	return cli.Program{Name: name, Version: p.Identity.Version, Stdout: p.Stdout, Stderr: p.Stderr}.RunClean(ctx, args, p.command)
}

// exitCodes is a part of every help.
const exitCodes = `Exit codes: 0; 1 something needs attention, or failed; 2 usage; 3 nothing is
known to be wrong, but something could not be found out.`

// command is the program's command, which writes to the streams.
func (p Program) command(stdout, stderr io.Writer) *cobra.Command {
	p.Stdout, p.Stderr = stdout, stderr
	root := &cobra.Command{Short: "say how " + p.Identity.Name + " does in a cluster, and what becomes of a pod's traffic", Long: exitCodes}
	c := &cluster{Program: p}
	if p.Migrate != nil {
		root = p.Migrate(c.lend())
	} else {
		root.AddCommand(c.statusCommand(), c.explainCommand(), c.rulesCommand(), c.traceCommand(), c.showCommand(), c.checkCommand(), c.testCommand(),
			p.migrateCommand())
	}
	c.flags(root.PersistentFlags())
	if err := root.RegisterFlagCompletionFunc("namespace", c.completeNamespaces); err != nil {
		panic(err) // there is such a flag
	}
	return root
}

func (p *Program) setDefaults() {
	p.Identity = p.Identity.WithDefaults()
	cli.Default[io.Reader](&p.Stdin, strings.NewReader(""))
	cli.Default(&p.Stdout, io.Discard)
	cli.Default(&p.Stderr, io.Discard)
	if p.Dialects == nil {
		p.Dialects = builtin.All()
	}
	p.Facts = facts.Beside(p.Facts, p.Dialects)
	if p.Env == nil {
		p.Env = func(string) (string, bool) { return "", false }
	}
	if p.connect == nil {
		p.connect = connect
	}
	if p.besides == nil {
		p.besides, p.become = besides, become
	}
	if p.ask == nil {
		p.ask = func(config *rest.Config) asker { return forwarder{config} }
	}
}

// patience bounds one agent's time for an answer, unless --agent-timeout says otherwise. The answer takes milliseconds, a
// look into a pod at most ten seconds.
const patience = 15 * time.Second

// connect is the cluster that kubectl's flags, KUBECONFIG and the files that it names say.
func connect(flags *genericclioptions.ConfigFlags) (*rest.Config, kubernetes.Interface, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, nil, err
	}
	// The API server limits clients itself, by priority and fairness; client-go's own limit would make it five requests a second.
	config.QPS = -1
	// Most of the work for many pods is reading their JSON.
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	proxy, setting := config.Proxy, "the kubeconfig's proxy-url"
	if proxy == nil { // as kubectl
		proxy, setting = http.ProxyFromEnvironment, ""
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return apianswer.Checked(next, proxy, setting) })
	client, err := kubernetes.NewForConfig(config)
	return config, client, err
}
