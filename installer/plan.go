//go:build linux

package installer

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/status"
)

// Plan lists the changes that a node needs, or that were left to do when [Install] or [Uninstall] ended.
type Plan struct {
	// actions in the order in which to do them.
	actions []action
	// Target is the name of the file that contains the entry when all is done. It is empty if the entry cannot be put there, and for
	// an uninstall.
	Target string
	// Network is the name of the target's network.
	Network string
	// Skipped are the files that the runtime tries before Target and cannot load.
	Skipped []conflist.Skipped
	// Blocked is the reason why pods would still not be captured after all that; empty if they would. What is done then goes as far as is safe.
	Blocked []*BlockedError
	// Notes are warnings for the log.
	Notes []string
	// Neighbours are other meshes' plugins in the list that the runtime loads.
	Neighbours []Neighbour

	unwhole []*BlockedError // what keeps a node from being ready with the entry in place
	left    []string        // the lists that the actions remove because their owners are gone

	unseen bool // the configurations could not be judged, so nor could Neighbours
}

// noNetwork reports whether there is no network to chain into, and nothing else is wrong.
func (p Plan) noNetwork() bool { return len(p.Blocked) == 1 && p.Blocked[0].Code == codeNoNetwork }

type planner struct {
	Plan
	c     Config
	o     observed
	entry []byte // nil if it is invalid
	typ   string
	// absent are the files that the entry names and that do not exist yet.
	absent []string
	// last has the path of the latest action on each configuration file, by its stem; when installing, on any ("").
	last         map[string]string
	uninstalling bool
}

func newPlanner(c Config, o observed) (*planner, error) {
	p := &planner{c: c, o: o, last: map[string]string{}}
	for _, path := range o.stale {
		p.do(action{Op: opRemoveTemp, Path: path, Cause: causeKilledRun})
	}
	var err error
	p.entry, p.typ, err = c.entry()
	return p, err
}

// planInstall is a pure function of its arguments. Binary and kubeconfig do not wait for each other; the conflist waits for
// both.
func planInstall(c Config, o observed) Plan {
	p, err := newPlanner(c, o)
	if err != nil {
		p.block(codeBadEntry, err)
		p.kubeconfig() // the entry on the node may need it
		return p.Plan
	}
	binaries, kubeconfig := p.binaries(), p.kubeconfig()
	p.record()
	p.hookPlugin()
	before := len(p.actions)
	conf := p.conf()
	if !conf || !binaries || !kubeconfig {
		p.actions = p.actions[:before]
	} else {
		p.notes()
	}
	p.unseen = !conf
	if conf {
		p.Neighbours = p.neighbours()
	}
	if len(p.Blocked) > 0 {
		p.Target = ""
	}
	return p.Plan
}

// do adds an action. One on a configuration file needs everything that the entry names to exist, and the action before it.
func (p *planner) do(a action) {
	switch {
	case a.Cause == causeBinaryMissing, a.Cause == causeKubeconfigMissing:
		p.absent = append(p.absent, a.Path)
	case a.conf():
		stem := ""
		if p.uninstalling { // each file by itself
			stem = stemOf(filepath.Base(a.Path))
		}
		a.Needs = slices.Clone(p.absent)
		if last, ok := p.last[stem]; ok {
			a.Needs = append(a.Needs, last)
		}
		p.last[stem] = a.Path
	}
	p.actions = append(p.actions, a)
}

// block adds a reason, once, and returns false.
func (p *planner) block(code status.Code, err error) bool {
	if !slices.ContainsFunc(p.Blocked, func(b *BlockedError) bool { return b.Code == code && b.Err.Error() == err.Error() }) {
		p.Blocked = append(p.Blocked, &BlockedError{code, err})
	}
	return false
}

func (p *planner) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

func (p *planner) path(name string) string { return filepath.Join(p.c.CNIConfDir, name) }

// binaries reports whether every binary directory has the plugin, or gets it by an action.
func (p *planner) binaries() bool {
	from := p.c.source()
	ok := true
	for _, dir := range p.o.binDirs {
		install := action{Op: opBinary, From: from, Path: filepath.Join(dir.Path, p.typ), Cause: causeBinaryMissing}
		switch {
		case dir.Err != nil:
			ok = p.block(codeBinDir, fmt.Errorf("reading the binary directory: %w", dir.Err))
		case dir.Current:
		case p.o.sourceErr != nil && dir.Usable:
			p.note("keeping the binary in %s: %v", dir.Path, p.o.sourceErr)
		case p.o.sourceErr != nil:
			ok = p.block(codeNoBinary, fmt.Errorf("reading the binary to install: %w", p.o.sourceErr))
		default:
			if dir.Usable {
				install.Cause = causeBinaryChanged
			}
			p.do(install)
		}
	}
	return ok
}

// record notes a type other than the default, so that an uninstall without these settings finds it.
func (p *planner) record() {
	if p.typ != p.c.Identity.WithDefaults().Plugin && !slices.Contains(p.o.types, p.typ) {
		types := append(slices.Clone(p.o.types), p.typ)
		p.do(action{Op: opRecord, Path: p.c.record(), New: recordOf(types), Cause: causeTypeNew})
	}
}

func (p *planner) kubeconfig() bool {
	if p.c.KubeconfigName == "" {
		return true
	}
	if p.o.credentialsErr != nil {
		err := fmt.Errorf("reading the service account: %w (mount it at %s, or set --service-account-dir)", p.o.credentialsErr, p.c.ServiceAccountDir)
		if p.o.kubeconfig == nil {
			return p.block(codeNoCredentials, err)
		}
		p.note("keeping the kubeconfig: %v", err) // the kubelet may be rotating the token
		return true
	}
	if p.c.KubernetesHost == "" {
		return p.block(codeNoAPIServer, errors.New("the API server's address is unknown: set KUBERNETES_SERVICE_HOST or --kubernetes-service-host"))
	}
	write := action{Op: opKubeconfig, Path: p.c.kubeconfig(), New: kubeconfigFor(p.c, p.o.credentials)}
	switch {
	case p.o.kubeconfig == nil:
		write.Cause = causeKubeconfigMissing
	case !bytes.Equal(p.o.kubeconfig, write.New):
		write.Cause = causeCredentialsChanged
	case p.o.kubeconfigMode != 0o600:
		write.Cause = causeKubeconfigMode
	default:
		return true
	}
	p.do(write)
	return true
}

// notes warns about settings without effect, and about a target that the runtime may not load.
func (p *planner) notes() {
	if p.c.PluginConfig != "" {
		if _, overruled, _ := p.c.fromTemplate(); len(overruled) > 0 {
			p.note("the template's %s count, not the settings", strings.Join(overruled, ", "))
		}
	}
	for _, s := range p.Skipped {
		p.note("the runtime looks at %s before %s and cannot load it (containerd then loads none): %v", s.Name, p.Target, s.Err)
	}
	for _, u := range p.unwhole {
		p.note("%v", u)
	}
	f := p.parse(p.Target)
	if f == nil {
		return
	}
	if v := f.CNIVersion(); v == "" || v == "0.1.0" || v == "0.2.0" {
		p.note("%s: cniVersion %q is older than chaining (0.3.0)", p.Target, v)
	}
}
