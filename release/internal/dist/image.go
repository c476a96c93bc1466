package dist

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/image"
	"github.com/meshcni/meshcni/release/internal/modules"
	"github.com/meshcni/meshcni/release/internal/sbom"
)

// places are where the image has the programs. The plugin is not for the container to run, but to be copied to the node.
var places = map[string]string{
	"meshcni":          "opt/meshcni/bin/meshcni",
	"meshcni-node":     "usr/local/bin/meshcni-node",
	"meshcni-redirect": "usr/local/bin/meshcni-redirect",
	"meshcni-repair":   "usr/local/bin/meshcni-repair",
	"meshcni-taint":    "usr/local/bin/meshcni-taint",
}

// bill is where the image has its bill of materials: in it, and not attached to it in a registry, so that it comes along on
// every way that an image takes to a node. Scanners know it by the end of its name.
const bill = "usr/local/share/meshcni/sbom.cdx.json"

// initProgram is what the image calls meshcni-redirect for a container whose command is the name of Istio's init-container program.
// With that name as the first argument the image's own program becomes it.
var initProgram = files.File{Name: "usr/local/bin/istio-iptables", Link: "meshcni-redirect"}

// rootfs is all that the image holds.
func (r *Release) rootfs(p *platform) ([]files.File, error) {
	tree := append(files.Below("licenses", modules.Texts(p.modules)), initProgram)
	for _, program := range p.programs {
		tree = append(tree, files.File{Name: places[program.Name], Mode: 0o755, Path: program.Path})
	}
	text, err := sbom.Write(r.tree, p.Platform, container("", ""), p.programs, p.modules)
	if err != nil {
		return nil, err
	}
	return append(tree, files.File{Name: bill, Mode: 0o644, Data: text}), nil
}

// container is an image as the subject of a bill of materials.
func container(digest, purl string) sbom.Subject {
	s := sbom.Subject{Type: cdx.ComponentTypeContainer, Name: image.Repository, Digest: digest, PURL: purl, Places: map[string]string{}}
	for name, place := range places {
		s.Places[name] = "/" + place
	}
	return s
}

// Rootfs writes the image's files below the output directory, for whoever makes an image of them with another tool.
func (r *Release) Rootfs(ctx context.Context, arch string) error {
	p, err := r.platform(ctx, arch)
	if err != nil {
		return err
	}
	tree, err := r.rootfs(p)
	if err != nil {
		return err
	}
	return files.WriteDir(r.out, tree)
}

// Images writes the images: for each architecture a docker-archive, and of all one OCI layout.
func (r *Release) Images(ctx context.Context, arches []string) error {
	var images []*image.Image
	for _, arch := range arches {
		p, err := r.platform(ctx, arch)
		if err != nil {
			return err
		}
		tree, err := r.rootfs(p)
		if err != nil {
			return err
		}
		i, err := image.New(arch, r.tree.Stamp, tree, filepath.Join(r.work, arch, "image"))
		if err != nil {
			return err
		}
		file := r.name("image_linux_" + arch + ".docker.tar")
		if err := i.WriteDocker(filepath.Join(r.out, file)); err != nil {
			return err
		}
		id, err := i.Docker.ConfigName()
		if err != nil {
			return fmt.Errorf("image for %s: %w", arch, err)
		}
		if err := r.wrote(file, fmt.Sprintf("image ID %s, unpacked %s", id, megabytes(i.Unpacked))); err != nil {
			return err
		}
		images = append(images, i)
	}
	file := r.name("image_oci.tar")
	digest, err := image.WriteOCI(filepath.Join(r.out, file), images, filepath.Join(r.work, "layout"))
	if err != nil {
		return err
	}
	r.index = digest.String()
	if err := r.wrote(file, "index "+r.index); err != nil {
		return err
	}
	for _, i := range images {
		if err := r.describe(i); err != nil {
			return fmt.Errorf("image for %s: %w", i.Arch, err)
		}
	}
	return nil
}

// describe writes the bill of materials of an image in the layout, and tells what there is to pull.
func (r *Release) describe(i *image.Image) error {
	m, err := i.OCI.Manifest()
	if err != nil {
		return err
	}
	digest, err := i.OCI.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintf(r.log, "  linux/%s  %s to pull  manifest %s\n", i.Arch, megabytes(m.Config.Size+m.Layers[0].Size), digest)
	purl := "pkg:oci/meshcni@" + url.PathEscape(digest.String()) + "?arch=" + i.Arch + "&tag=" + r.tree.Version
	p := r.platforms[i.Arch]
	text, err := sbom.Write(r.tree, p.Platform, container(digest.Hex, purl), p.programs, p.modules)
	if err != nil {
		return err
	}
	return r.write(r.name("image_linux_"+i.Arch+".cdx.json"), text, "bill of materials")
}

// name is what a file of the release is called.
func (r *Release) name(suffix string) string { return "meshcni_" + r.tree.Number() + "_" + suffix }
