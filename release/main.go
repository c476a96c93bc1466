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

func command() *cobra.Command {
	var s source
	var from, out, arch string
	root := &cobra.Command{
		Use:           "release",
		Short:         "Make what a release consists of, reproducibly",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&from, "source", ".", "a directory in the sources to build")
	flags.StringVarP(&out, "output", "o", "dist", "directory to write to; a relative one is in the sources' root")
	flags.StringVar(&s.version, "version", "", `version, "v1.2.3" (default: the chart's appVersion)`)
	flags.StringVar(&s.commit, "commit", "", "hash of the commit (default: from git)")
	flags.StringVar(&s.registry, "registry", "", "registry that image and chart are for, a host and perhaps a path (default: none, and who installs must say it)")

	// add adds a command that does something with the sources.
	add := func(use, short string, do func(ctx context.Context, cmd *cobra.Command) error) *cobra.Command {
		cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if s.root, err = find(from); err == nil {
				err = s.complete(cmd.Context(), os.Getenv("SOURCE_DATE_EPOCH"))
			}
			if err != nil {
				return err
			}
			return do(cmd.Context(), cmd)
		}}
		root.AddCommand(cmd)
		return cmd
	}
	// into makes a release of what is done with one.
	into := func(do func(ctx context.Context, r *release) error) func(context.Context, *cobra.Command) error {
		return func(ctx context.Context, cmd *cobra.Command) error {
			if !filepath.IsAbs(out) { // the go command's -C has changed what it was relative to
				out = filepath.Join(s.root, out)
			}
			return s.release(out, cmd, func(r *release) error { return do(ctx, r) })
		}
	}
	add("all", "Make everything, with checksums", into(func(ctx context.Context, r *release) error { return r.all(ctx) }))
	image := add("image", "Make the images: a docker-archive for each architecture, and an OCI layout of all", into(func(ctx context.Context, r *release) error {
		switch {
		case arch == "all":
			return r.images(ctx, arches)
		case slices.Contains(arches, arch):
			return r.images(ctx, []string{arch})
		}
		return fmt.Errorf("architecture %q: only %s are released", arch, strings.Join(arches, " and "))
	}))
	image.Flags().StringVar(&arch, "arch", "all", strings.Join(arches, ", ")+" or all")
	add("chart", "Package the Helm chart, and the plain manifests", into(func(_ context.Context, r *release) error { return r.deploy() }))
	add("modules", "Give the nested modules the version's requirements, in place, and print the tags of that commit", func(_ context.Context, cmd *cobra.Command) error {
		tags, err := s.prepare()
		for _, tag := range tags {
			fmt.Fprintln(cmd.OutOrStdout(), tag)
		}
		return err
	})
	return root
}

// release makes a release into the directory out.
func (s source) release(out string, cmd *cobra.Command, do func(*release) error) (err error) {
	if _, err := s.imageName(); err != nil {
		return err
	}
	if strings.HasSuffix(s.commit, "-dirty") {
		cmd.PrintErrln("release: the checkout has changes that are in no commit; nobody else can build the same")
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "meshcni-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	return do(&release{source: s, out: out, work: work, log: cmd.OutOrStdout(), nodes: map[string]*built{}})
}

// all writes the whole release, into an empty directory: nothing of another version may be beside it.
func (r *release) all(ctx context.Context) error {
	if found, err := os.ReadDir(r.out); err != nil || len(found) > 0 {
		return errors.Join(err, fmt.Errorf("%s is not empty", r.out))
	}
	if err := r.archives(ctx, plugins); err != nil {
		return err
	}
	if err := r.images(ctx, arches); err != nil {
		return err
	}
	if err := r.deploy(); err != nil {
		return err
	}
	return r.checksums()
}
