package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/template"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// release is one in the making.
type release struct {
	source
	// out is the directory for the results, work for what is only needed on the way.
	out, work string
	// log is told of each file.
	log io.Writer
	// nodes are what was built for nodes, by architecture.
	nodes map[string]*built
	// index is the digest of the images' index, once that is made.
	index string
}

// built are programs for a platform, and what they are made of.
type built struct {
	platform
	programs []program
	modules  []linkedModule
}

// build builds programs, and looks what they are made of.
func (r *release) build(ctx context.Context, at platform, names ...string) (b *built, err error) {
	b = &built{platform: at}
	if b.programs, err = r.source.build(ctx, at, filepath.Join(r.work, at.os+"-"+at.arch), names...); err != nil {
		return nil, err
	}
	b.modules, err = r.linked(ctx, at, b.programs)
	return b, err
}

// node builds a node's programs for an architecture, once.
func (r *release) node(ctx context.Context, arch string) (b *built, err error) {
	if b = r.nodes[arch]; b == nil {
		b, err = r.build(ctx, platform{"linux", arch}, slices.Sorted(maps.Keys(nodePrograms))...)
		r.nodes[arch] = b
	}
	return b, err
}

// name is what a file of the release is called.
func (r *release) name(suffix string) string { return "meshcni_" + r.number() + "_" + suffix }

// write writes a file of the output directory.
func (r *release) write(name string, data []byte) error {
	if err := os.WriteFile(filepath.Join(r.out, name), data, 0o644); err != nil {
		return err
	}
	return r.tell(name, "")
}

// tell logs a file of the output directory. A log that cannot be written is no reason to stop.
func (r *release) tell(name, what string) error {
	st, err := os.Stat(filepath.Join(r.out, name))
	if err == nil {
		_, _ = fmt.Fprintf(r.log, "%8.2f MB  %s  %s\n", float64(st.Size())/1e6, name, what)
	}
	return err
}

// targz writes an archive into the output directory, of files in one directory of its name.
func (r *release) targz(base string, list []file) error {
	// Level 9 is four times as slow, for a third of a percent.
	if err := archive(filepath.Join(r.out, base+".tar.gz"), below(base, list), r.time, gzipped(8)); err != nil {
		return err
	}
	return r.tell(base+".tar.gz", "")
}

// archives writes for each architecture an archive of a node's programs, for each platform one of the kubectl plugin, and the
// plugin's manifest for krew.
func (r *release) archives(ctx context.Context, plugins []platform) error {
	for _, arch := range arches {
		b, err := r.node(ctx, arch)
		if err == nil {
			_, err = r.pack(b, r.name("linux_"+arch))
		}
		if err != nil {
			return fmt.Errorf("archive for linux/%s: %w", arch, err)
		}
	}
	var all []plugin
	for _, at := range plugins {
		p := plugin{OS: at.os, Arch: at.arch, Base: kubectlPlugin + "_" + r.number() + "_" + at.os + "_" + at.arch}
		b, err := r.build(ctx, at, kubectlPlugin, migrateProgram)
		if err == nil {
			p.Bin = b.programs[0].file()
			p.Digest, err = r.pack(b, p.Base)
		}
		if err != nil {
			return fmt.Errorf("plugin for %s: %w", at, err)
		}
		all = append(all, p)
	}
	var text bytes.Buffer
	if err := krew.Execute(&text, map[string]any{"Home": "https://" + ourModule, "Version": r.version, "Archives": all}); err != nil {
		return fmt.Errorf("manifest for krew: %w", err)
	}
	return r.write("meshcni.yaml", text.Bytes())
}

//go:embed krew.yaml.tmpl
var krewText string

var krew = template.Must(template.New("krew").Option("missingkey=error").Parse(krewText))

// plugin is an archive as the manifest names it: Base is its one directory, and its name without ending, Bin the plugin in it.
type plugin struct{ OS, Arch, Base, Bin, Digest string }

// pack writes the archive of a platform's programs with what their licences want to be with them, and its bill of materials. It
// returns the archive's SHA-256.
func (r *release) pack(b *built, base string) (sum string, err error) {
	list := append(licences(b.modules), file{name: "README.md", mode: 0o644, path: filepath.Join(r.root, "README.md")})
	places := map[string]string{}
	for _, p := range b.programs {
		list = append(list, file{name: p.file(), mode: 0o755, path: p.path})
		places[p.name] = base + "/" + p.file()
	}
	if err := r.targz(base, list); err != nil {
		return "", err
	}
	if sum, err = digest(filepath.Join(r.out, base+".tar.gz")); err != nil {
		return "", err
	}
	subject := cdx.Component{Type: cdx.ComponentTypeFile, Name: base + ".tar.gz", Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}}}
	text, err := b.bill(r.source, subject, places)
	if err != nil {
		return "", err
	}
	return sum, r.write(base+".cdx.json", text)
}

// checksums lists all files of the output directory, as sha256sum does.
func (r *release) checksums() error {
	list, err := directory(r.out)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, f := range list {
		sum, err := digest(f.path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, f.name)
	}
	return r.write("checksums.txt", text.Bytes())
}
