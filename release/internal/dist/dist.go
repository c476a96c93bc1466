// Package dist puts a release together: builds the programs once for each architecture, and makes of them the images, the
// archives and what goes with them. Each file that it writes depends on the sources and their stamp alone.
package dist

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni/release/internal/image"
	"github.com/meshcni/meshcni/release/internal/modules"
	"github.com/meshcni/meshcni/release/internal/programs"
	"github.com/meshcni/meshcni/release/internal/source"
)

// Release is one in the making.
type Release struct {
	// PluginPlatforms are what the plugin is made for. New sets all.
	PluginPlatforms []programs.Platform

	tree source.Tree
	// out is where the results go, work where what is only needed on the way.
	out, work string
	log       io.Writer
	platforms map[string]*platform
	// index is the digest of the images' index, once that is made.
	index string
	// written are the names of the files in out.
	written []string
}

// platform is what is built for one.
type platform struct {
	programs.Platform
	programs []programs.Program
	modules  []modules.Module
}

// New returns a release of the tree into the directory out, which it makes. What it writes is told to log, a line each.
// Close removes what was needed on the way.
func New(tree source.Tree, out string, log io.Writer) (*Release, error) {
	if _, err := image.Name(tree.Stamp); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("release into %s: %w", out, err)
	}
	work, err := os.MkdirTemp("", "meshcni-release-")
	if err != nil {
		return nil, fmt.Errorf("release into %s: %w", out, err)
	}
	return &Release{PluginPlatforms: programs.PluginPlatforms(), tree: tree, out: out, work: work, log: log, platforms: map[string]*platform{}}, nil
}

// Close removes temporary files.
func (r *Release) Close() error { return os.RemoveAll(r.work) }

// platform builds a node's programs for the architecture, once.
func (r *Release) platform(ctx context.Context, arch string) (*platform, error) {
	if p := r.platforms[arch]; p != nil {
		return p, nil
	}
	p, err := r.build(ctx, programs.Linux(arch), programs.Names...)
	if err == nil {
		r.platforms[arch] = p
	}
	return p, err
}

// build builds programs, and looks what they are made of.
func (r *Release) build(ctx context.Context, at programs.Platform, names ...string) (p *platform, err error) {
	p = &platform{Platform: at}
	if p.programs, err = programs.Build(ctx, r.tree, at, names, filepath.Join(r.work, at.OS, at.Arch, names[0])); err != nil {
		return nil, err
	}
	if p.modules, err = modules.Linked(ctx, r.tree, at, p.programs); err != nil {
		return nil, err
	}
	return p, nil
}

// wrote tells of a file in the output directory.
func (r *Release) wrote(name, what string) error {
	st, err := os.Stat(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	r.written = append(r.written, name)
	// A log that cannot be written is no reason to stop.
	fmt.Fprintf(r.log, "%s  %s  %s\n", name, megabytes(st.Size()), what)
	return nil
}

// write writes a file of the output directory.
func (r *Release) write(name string, data []byte, what string) error {
	if err := os.WriteFile(filepath.Join(r.out, name), data, 0o644); err != nil {
		return err
	}
	return r.wrote(name, what)
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.2f MB", float64(bytes)/1e6) }
