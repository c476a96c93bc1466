package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/release/internal/dist"
	"github.com/meshcni/meshcni/release/internal/programs"
	"github.com/meshcni/meshcni/release/internal/source"
	"github.com/meshcni/meshcni/release/internal/tag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// settings are the flags that all commands have.
type settings struct {
	source string
	output string
	arch   string
	plugin []string
	source.Options
}

func command() *cobra.Command {
	s := settings{}
	root := &cobra.Command{
		Use:           "release",
		Short:         "Make what a release consists of, reproducibly",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&s.source, "source", ".", "a directory in the sources to build")
	flags.StringVarP(&s.output, "output", "o", "dist", "directory to write to; a relative one is in the sources' root")
	flags.StringVar(&s.Version, "version", "", `version, "v1.2.3" (default: from git's tags)`)
	flags.StringVar(&s.Commit, "commit", "", "hash of the commit (default: from git)")
	flags.StringVar(&s.Registry, "registry", "", "registry that image and chart are for, a host and perhaps a path (default: none, and who installs must say it)")
	s.Epoch = os.Getenv("SOURCE_DATE_EPOCH")

	arches := func(cmd *cobra.Command) *cobra.Command {
		cmd.Flags().StringVar(&s.arch, "arch", "all", strings.Join(programs.Arches, ", ")+" or all")
		return cmd
	}
	platforms := func(cmd *cobra.Command) *cobra.Command {
		var all []string
		for _, p := range programs.PluginPlatforms() {
			all = append(all, p.String())
		}
		cmd.Flags().StringSliceVar(&s.plugin, "plugin", all, "platforms that kubectl-meshcni is made for")
		return cmd
	}
	simple := func(use, short string, do func(context.Context, *dist.Release) error) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: s.run(do)}
	}
	root.AddCommand(s.publish(), s.verifyPublished())
	root.AddCommand(
		platforms(simple("all", "Make everything, with checksums", func(ctx context.Context, r *dist.Release) error {
			return r.All(ctx)
		})),
		arches(simple("image", "Make the images: a docker-archive for each architecture, and an OCI layout of all", func(ctx context.Context, r *dist.Release) error {
			return r.Images(ctx, s.arches())
		})),
		arches(simple("archives", "Make the archives of the programs", func(ctx context.Context, r *dist.Release) error {
			return r.Archives(ctx, s.arches())
		})),
		platforms(simple("plugin", "Make the archives of kubectl-meshcni for people's machines, and its manifest for krew", func(ctx context.Context, r *dist.Release) error {
			return r.Plugin(ctx)
		})),
		simple("chart", "Package the Helm chart, and the plain manifests", func(_ context.Context, r *dist.Release) error {
			return r.Deploy()
		}),
		arches(simple("rootfs", "Write the image's files to the output directory, for another tool to make an image of", func(ctx context.Context, r *dist.Release) error {
			if s.arch == "all" {
				return errors.New("rootfs is for one architecture: give --arch")
			}
			return r.Rootfs(ctx, s.arch)
		})),
		&cobra.Command{
			Use:   "modules",
			Short: "Give the nested modules the version's requirements, in place, and print the tags of that commit",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				tree, err := s.open(cmd)
				if err != nil {
					return err
				}
				if err := tag.Prepare(tree.Root, tree.Version); err != nil {
					return err
				}
				for _, name := range tag.Tags(tree.Version) {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return nil
			},
		},
		&cobra.Command{
			Use:   "verify [DIR]",
			Short: "Check the files of a release, by default those in --output, and that the sources make the same ones again",
			Args:  cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				root, err := source.Find(s.source)
				if err != nil {
					return err
				}
				dir := append(args, s.output)[0]
				return dist.Verify(cmd.Context(), root, within(root, dir), s.Registry, cmd.OutOrStdout())
			},
		},
	)
	return root
}

func (s *settings) arches() []string {
	if s.arch == "all" {
		return slices.Clone(programs.Arches)
	}
	return []string{s.arch}
}

// run makes a command of what is done with a release.
func (s *settings) run(do func(context.Context, *dist.Release) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		tree, err := s.open(cmd)
		if err != nil {
			return err
		}
		r, err := dist.New(tree, within(tree.Root, s.output), cmd.OutOrStdout())
		if err != nil {
			return err
		}
		if s.plugin != nil {
			r.PluginPlatforms = nil
		}
		for _, text := range s.plugin {
			var p programs.Platform
			if err := p.UnmarshalText([]byte(text)); err != nil {
				return errors.Join(err, r.Close())
			}
			r.PluginPlatforms = append(r.PluginPlatforms, p)
		}
		return errors.Join(do(cmd.Context(), r), r.Close())
	}
}

// within makes a relative path one from the sources' root, since the go command's -C has changed what it was relative to.
func within(root, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(root, path)
}

// open reads the sources, and says which they are.
func (s *settings) open(cmd *cobra.Command) (source.Tree, error) {
	root, err := source.Find(s.source)
	if err != nil {
		return source.Tree{}, err
	}
	tree, err := source.Open(cmd.Context(), root, s.Options)
	if err != nil {
		return source.Tree{}, err
	}
	if tree.Modified {
		cmd.PrintErrln("release: the checkout has changes that are in no commit; nobody else can build the same")
	}
	return tree, nil
}
