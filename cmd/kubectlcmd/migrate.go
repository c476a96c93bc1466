package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/migration"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/mesh"
)

type migrateFlags struct {
	from, daemonSet, output, html, values string
	enter                                 enterFlags
}

func (c *cluster) migrateCommand() *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use: "migrate", Short: "say what it takes to move from another plugin or from init containers",
		Long: `It reads the other plugin's DaemonSet and ConfigMaps and the pods, and changes
nothing. Exits 1 if a pod would be captured otherwise or refused, or if a setting
that decides on it has no equal here; 3 if something cannot be told.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(f.enter.check(), c.open()); err != nil {
				return err
			}
			r, left, err := c.migrate(cmd.Context(), f)
			if cmd.Context().Err() != nil {
				err = context.Cause(cmd.Context())
			}
			if err != nil {
				return errors.Join(err, left)
			}
			if f.output == "json" {
				err = printers.JSON(c.Stdout, r)
			} else {
				err = r.Print(visible.To(c.Stdout))
			}
			if f.html != "" {
				err = errors.Join(err, writeFile(f.html, r.HTML))
			}
			if f.values != "" {
				err = errors.Join(err, writeFile(f.values, func(w io.Writer) error {
					_, err := io.WriteString(w, r.Plan.ValuesYAML())
					return err
				}))
			}
			switch err = errors.Join(err, left); {
			case err != nil:
				return err
			case r.Wrong():
				return cli.Exit(ExitWrong)
			case r.Unsure():
				return cli.Exit(ExitUnknown)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&f.from, "from", "", "the other plugin: "+strings.Join(c.sources(), ", ")+" (default: the one that is found)")
	cmd.Flags().StringVar(&f.daemonSet, "daemonset", "", "the other plugin's DaemonSet, as NAMESPACE/NAME (default: it is looked for); needs --from")
	f.enter.register(cmd)
	cmd.Flags().VarP(cli.Choice(&f.output, "text", "json"), "output", "o", "text or json")
	cmd.Flags().StringVar(&f.html, "html", "", "write the report to this file too, as a page to hand around")
	cmd.Flags().StringVar(&f.values, "values", "", "write the chart's values to this file")
	cmd.AddCommand(c.switchCommands()...)
	return cmd
}

// sources are what can be moved from.
func (c *cluster) sources() []string {
	return append(migration.Plugins(c.Facts), migration.InitContainers)
}

// writeFile writes a file that is whole, or reports that it is not.
func writeFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

// migrate makes the report. left is what of the pods that --enter has made could not be deleted.
func (c *cluster) migrate(ctx context.Context, f migrateFlags) (r migration.Report, left, err error) {
	m := &move{cluster: c, entrance: entrance{enterFlags: f.enter}}
	if err := m.find(ctx, f); err != nil {
		return r, nil, err
	}
	r.Objects, r.From = append([]string{}, m.objects...), m.plan.From
	if err := m.look(ctx, &r.Nodes); err != nil {
		return r, nil, err
	}
	if err := m.pods(ctx); err != nil {
		return r, m.entrance.left, err
	}
	if m.entrance.unread > 0 && !f.enter.enter {
		visible.To(c.Stderr).Printf("the live rules of %s are not known; %s\n", many(m.entrance.unread, "pod", "pods"), enterHint)
	}
	r.Groups, r.Outside, r.Plan = m.judge.Groups(), m.judge.Outside, m.plan
	for _, g := range r.Groups {
		r.Pods += g.Count
	}
	return r, m.entrance.left, nil
}

// move is the state of a migration.
type move struct {
	*cluster
	plan    migration.Plan
	judge   migration.Judge
	objects []string
	agents  map[string]*lookout // by the node's name

	entrance entrance
}

// found is another plugin's DaemonSet.
type found struct {
	mesh mesh.Facts
	ds   *appsv1.DaemonSet
}

func (x found) String() string {
	return x.mesh.Plugin.Type + " (DaemonSet " + x.ds.Namespace + "/" + x.ds.Name + ")"
}

// find makes the plan.
func (m *move) find(ctx context.Context, f migrateFlags) error {
	from, known := migration.Named(m.Facts, f.from)
	if f.from != "" && !known && f.from != migration.InitContainers {
		return cli.Usagef("--from %q: none of %s", f.from, strings.Join(m.sources(), ", "))
	}
	if f.daemonSet != "" {
		namespace, name, ok := strings.Cut(f.daemonSet, "/")
		if !ok || !known || namespace == "" || name == "" {
			return cli.Usagef("--daemonset %q: NAMESPACE/NAME of a plugin that --from names", f.daemonSet)
		}
		ds, err := m.client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("--daemonset: %w", err)
		}
		return m.read(ctx, found{from, ds})
	}
	var all []found
	if f.from != migration.InitContainers {
		m.progress("the other plugin's DaemonSet")
		var err error
		if all, err = m.daemonSets(ctx, f.from); err != nil {
			return err
		}
	}
	switch {
	case len(all) > 1:
		var names []string
		for _, x := range all {
			names = append(names, x.String())
		}
		return cli.Usagef("there are several: %s; name one by --from, and its DaemonSet by --daemonset", strings.Join(names, ", "))
	case len(all) == 1:
		return m.read(ctx, all[0])
	case known:
		return fmt.Errorf("no DaemonSet of %s is in any namespace; if it has other labels than its chart gives, name it by --daemonset", f.from)
	}
	return m.inits(ctx)
}

// daemonSets returns those of other plugins; an empty name is any plugin.
func (m *move) daemonSets(ctx context.Context, name string) (all []found, err error) {
	err = list(ctx, m.client.AppsV1().DaemonSets("").List, metav1.ListOptions{}, func(ds *appsv1.DaemonSet) {
		if from, ok := migration.Recognise(m.Facts, ds); ok && (name == "" || name == from.Plugin.Type) {
			all = append(all, found{from, ds.DeepCopy()})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list daemonsets: %w", err)
	}
	return all, nil
}

// read reads the ConfigMaps that the DaemonSet takes settings from. One that cannot be read makes its settings unknown.
func (m *move) read(ctx context.Context, x found) error {
	m.objects = []string{"DaemonSet " + x.ds.Namespace + "/" + x.ds.Name}
	maps := map[string]migration.ConfigMap{}
	for _, name := range migration.ConfigMaps(x.ds) {
		got, err := m.client.CoreV1().ConfigMaps(x.ds.Namespace).Get(ctx, name, metav1.GetOptions{})
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
	return m.choose(migration.Make(x.mesh, settings))
}

// inits finds the mesh whose init containers write the rules.
func (m *move) inits(ctx context.Context) error {
	m.progress("the pods' init containers")
	meshes := map[string]int{}
	err := m.eachPage(ctx, func(pods []corev1.Pod) error {
		for i := range pods {
			if d, c := migration.Init(&pods[i], dialect.SetOf(m.Dialects...)); c != nil {
				meshes[d.Name]++
			}
		}
		return nil
	})
	names := slices.Sorted(maps.Keys(meshes))
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return fmt.Errorf("nothing to move from was found: no DaemonSet of %s, and no pod with an init container that writes a mesh's rules", strings.Join(migration.Plugins(m.Facts), ", "))
	case len(names) > 1:
		m.progress("the pods of %s only; there are also init containers of %s, which remain as they are", names[0], strings.Join(names[1:], ", "))
	}
	d := dialect.SetOf(m.Dialects...).Lookup(names[0])
	return m.choose(migration.MakeInits(m.Facts.Of(d.Name, d), *d))
}

// look asks the agents of ours that there are.
func (m *move) look(ctx context.Context, n *migration.Nodes) error {
	m.progress("the nodes")
	m.agents = map[string]*lookout{}
	err := m.listAgents(ctx, "", func(a agent) {
		if old := m.agents[a.Node]; old == nil || better(a, old.agent) {
			m.agents[a.Node] = &lookout{agent: a}
		}
	})
	if err != nil {
		return err
	}
	switched, err := m.switchedNodes(ctx, m.plan.From)
	if err != nil {
		return err
	}
	return m.eachNode(ctx, func(node string, said agentapi.Node, err error) {
		n.Total++
		switch {
		case errors.Is(err, errNoAgent):
			n.Set(node, migration.WithoutOurs)
			delete(m.agents, node)
		case err != nil:
			n.Set(node, migration.NotKnown)
			n.AddSilent("node " + node + ": " + err.Error())
			m.agents[node] = &lookout{trouble: err.Error()}
		default:
			n.Agents++
			state := migration.Ours
			switch {
			case slices.Contains(said.Installed.Plugins, m.plan.From):
				n.Other++
				state = migration.Both
			case slices.Contains(switched, node):
				state = migration.Switched
			}
			n.Set(node, state)
		}
	})
}
