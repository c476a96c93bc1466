package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

type migrateFlags struct {
	from, daemonSet, output, html, values string
	image                                 string // of the pod that enter makes
	enter                                 bool   // read what an agent cannot read by a pod on its node
}

func (c *cluster) migrateCommand() *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use: "migrate", Short: "say what it takes to move from another plugin or from init containers",
		Long: `It reads the other plugin's DaemonSet and ConfigMaps and the pods, and changes
nothing. Exits 1 if a pod would be captured otherwise or refused, or if a setting
that decides on it has no equal here; 3 if something cannot be told.`,
		PreRunE: func(*cobra.Command, []string) error {
			if f.image != "" && !f.enter {
				return c.usagef("--image %s: it is of the pod that --enter makes", f.image)
			}
			return nil
		},
		RunE: c.run(func(ctx context.Context, _ []string) error {
			r, err := c.migrate(ctx, f)
			if ctx.Err() != nil { // one that is interrupted has no answer
				err = context.Cause(ctx)
			}
			if err != nil {
				return err
			}
			err = c.Print(f.output, r, r.Print)
			if f.html != "" {
				err = errors.Join(err, writeFile(f.html, r.HTML))
			}
			if f.values != "" {
				err = errors.Join(err, os.WriteFile(f.values, []byte(r.Plan.ValuesYAML()), 0o666)) //nolint:gosec // no secret
			}
			switch {
			case err != nil:
				return err
			case r.Wrong():
				return c.Exit(exitWrong)
			case r.Unsure():
				return c.Exit(exitUnknown)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&f.from, "from", "", "the other plugin: "+strings.Join(c.sources(), ", ")+" (default: the one that is found)")
	cmd.Flags().StringVar(&f.daemonSet, "daemonset", "", "the other plugin's DaemonSet, as NAMESPACE/NAME (default: it is looked for); needs --from")
	cmd.Flags().BoolVar(&f.enter, "enter", false, "where an agent cannot read the live rules, read them by a short-lived pod on the node, which is deleted again; it takes the right to make privileged pods")
	cmd.Flags().StringVar(&f.image, "image", "", "with --enter: the pod's image, which has the agent as its entry point (default: that of the node's agent)")
	cmd.Flags().VarP(c.Choice(&f.output, "text", "json"), "output", "o", "text or json")
	cmd.Flags().StringVar(&f.html, "html", "", "write the report to this file too, as a page to hand around")
	cmd.Flags().StringVar(&f.values, "values", "", "write the chart's values to this file")
	cmd.AddCommand(c.switchCommands()...)
	return cmd
}

// sources lists the values of --from.
func (c *cluster) sources() []string {
	return append(migration.Plugins(c.peers()), migration.InitContainers)
}

// writeFile writes a file that is whole, or reports that it is not.
func writeFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

// migrate makes the report.
func (c *cluster) migrate(ctx context.Context, f migrateFlags) (r migration.Report, err error) {
	m := &move{cluster: c, enter: f.enter, image: f.image}
	if err := m.find(ctx, f); err != nil {
		return r, err
	}
	r.Objects, r.From = append([]string{}, m.objects...), m.plan.From
	if err := m.look(ctx, &r.Nodes); err != nil {
		return r, err
	}
	if err := m.pods(ctx); err != nil {
		return r, err
	}
	if m.unread > 0 && !f.enter {
		visible.To(c.Stderr).Printf("the live rules of %s are not known; %s\n", kubectl.Many(m.unread, "pod", "pods"), kubectl.EnterHint)
	}
	r.Groups, r.Outside, r.Plan = m.judge.Groups(), m.judge.Outside, m.plan
	for _, g := range r.Groups {
		r.Pods += g.Count
	}
	return r, nil
}

// move is the state of a migration.
type move struct {
	*cluster
	plan    migration.Plan
	judge   migration.Judge
	objects []string
	agents  map[string]*ruleSource // by the node's name

	enter   bool
	image   string
	mu      sync.Mutex
	refused error // the reason that no more pods are made
	unread  int   // the pods whose rules nobody has read
}

// found is another plugin's DaemonSet.
type found struct {
	mesh migration.Source
	ds   *appsv1.DaemonSet
}

func (x found) String() string {
	return x.mesh.Plugin.Type + " (DaemonSet " + x.ds.Namespace + "/" + x.ds.Name + ")"
}

// find makes the plan.
func (m *move) find(ctx context.Context, f migrateFlags) error {
	_, known := migration.Named(m.peers(), f.from)
	if f.from != "" && !known && f.from != migration.InitContainers {
		return m.usagef("--from %q: none of %s", f.from, strings.Join(m.sources(), ", "))
	}
	var other *found
	var err error
	if f.from != migration.InitContainers || f.daemonSet != "" {
		other, err = m.otherPlugin(ctx, f.from, f.daemonSet)
	}
	switch {
	case err != nil:
		return err
	case other != nil:
		return m.read(ctx, *other)
	case known:
		return fmt.Errorf("no DaemonSet of %s is in any namespace; if it has other labels than its chart gives, name it by --daemonset", f.from)
	}
	return m.inits(ctx)
}

// otherPlugin finds the DaemonSet of a plugin by the plugin's name, by its own NAMESPACE/NAME, or the only one that there is; nil: there is
// none.
func (c *cluster) otherPlugin(ctx context.Context, plugin, daemonSet string) (*found, error) {
	from, known := migration.Named(c.peers(), plugin)
	if daemonSet != "" {
		namespace, name, ok := strings.Cut(daemonSet, "/")
		if !ok || !known || namespace == "" || name == "" {
			return nil, c.usagef("--daemonset %q: NAMESPACE/NAME of a plugin that --from names", daemonSet)
		}
		ds, err := c.Client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("--daemonset: %w", err)
		}
		return &found{from, ds}, nil
	}
	var all []found
	err := apilist.Each(ctx, c.Client.AppsV1().DaemonSets("").List, metav1.ListOptions{}, func(ds *appsv1.DaemonSet) {
		if from, ok := migration.Recognise(c.peers(), ds); ok && (plugin == "" || plugin == from.Plugin.Type) {
			all = append(all, found{from, ds.DeepCopy()})
		}
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("list daemonsets: %w", err)
	case len(all) == 0:
		return nil, nil
	case len(all) > 1:
		var names []string
		for _, x := range all {
			names = append(names, x.String())
		}
		return nil, c.usagef("there are several: %s; name one by --from, and its DaemonSet by --daemonset", strings.Join(names, ", "))
	}
	return &all[0], nil
}

// read reads the ConfigMaps that the DaemonSet takes settings from. One that cannot be read makes its settings unknown.
func (m *move) read(ctx context.Context, x found) error {
	m.objects = []string{"DaemonSet " + x.ds.Namespace + "/" + x.ds.Name}
	maps := map[string]migration.ConfigMap{}
	for _, name := range migration.ConfigMaps(x.ds) {
		got, err := m.Client.CoreV1().ConfigMaps(x.ds.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			maps[name] = migration.ConfigMap{Err: err}
			continue
		}
		maps[name] = migration.ConfigMap{Data: got.Data}
		m.objects = append(m.objects, "ConfigMap "+x.ds.Namespace+"/"+name)
	}
	settings, err := migration.Settings(x.ds, maps)
	if err != nil {
		return err
	}
	return m.choose(migration.Make(m.Identity, x.mesh, settings))
}

// inits finds the mesh whose init containers write the rules.
func (m *move) inits(ctx context.Context) error {
	m.Progress("the pods' init containers")
	meshes := map[string]bool{}
	err := apilist.Each(ctx, m.Client.CoreV1().Pods("").List, metav1.ListOptions{}, func(pod *corev1.Pod) {
		if d, c := migration.Init(pod, dialect.SetOf(m.Dialects...)); c != nil {
			meshes[d.Name] = true
		}
	})
	names := slices.Sorted(maps.Keys(meshes))
	switch {
	case err != nil:
		return fmt.Errorf("list pods: %w", err)
	case len(names) == 0:
		return fmt.Errorf("nothing to move from was found: no DaemonSet of %s, and no pod with an init container that writes a mesh's rules", strings.Join(migration.Plugins(m.peers()), ", "))
	case len(names) > 1:
		m.Progress("the pods of %s only; there are also init containers of %s, which remain as they are", names[0], strings.Join(names[1:], ", "))
	}
	d := dialect.SetOf(m.Dialects...).Lookup(names[0])
	return m.choose(migration.MakeInits(m.Identity, m.Facts.Of(d.Name, d), *d))
}

// look asks the agents of ours that there are.
func (m *move) look(ctx context.Context, n *migration.Nodes) error {
	m.Progress("the nodes")
	m.agents = map[string]*ruleSource{}
	switched, err := m.switchedNodes(ctx, m.plan.From)
	if err != nil {
		return err
	}
	return m.EachNode(ctx, func(a agents.Agent, said agentapi.Node, err error) {
		n.Total++
		switch {
		case errors.Is(err, agents.ErrNoAgent):
			n.Set(a.Node, migration.WithoutOurs)
		case err != nil:
			n.Set(a.Node, migration.NotKnown)
			n.AddSilent("node " + a.Node + ": " + err.Error())
			m.agents[a.Node] = &ruleSource{trouble: err.Error()}
		default:
			n.Agents++
			m.agents[a.Node] = &ruleSource{agent: a}
			state := migration.Ours
			switch {
			case slices.Contains(said.Installed.Plugins, m.plan.From):
				n.Other++
				state = migration.Both
			case slices.Contains(switched, a.Node):
				state = migration.Switched
			}
			n.Set(a.Node, state)
		}
	})
}
