package dist

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/image"
	"github.com/meshcni/meshcni/release/internal/modules"
)

// places are where the image has the programs. The plugin is not for the container to run, but to be copied to the node.
var places = map[string]string{
	"meshcni":          "opt/meshcni/bin/meshcni",
	"meshcni-node":     "usr/local/bin/meshcni-node",
	"meshcni-redirect": "usr/local/bin/meshcni-redirect",
	"meshcni-repair":   "usr/local/bin/meshcni-repair",
}

// rootfs is all that the image holds.
func (p *platform) rootfs() []files.File {
	tree := files.Below("licenses", modules.Texts(p.modules))
	for _, program := range p.programs {
		tree = append(tree, files.File{Name: places[program.Name], Mode: 0o755, Path: program.Path})
	}
	return tree
}

// Rootfs writes the image's files below the output directory, for whoever makes an image of them with another tool.
func (r *Release) Rootfs(ctx context.Context, arch string) error {
	p, err := r.platform(ctx, arch)
	if err != nil {
		return err
	}
	return files.WriteDir(r.out, p.rootfs())
}

// Images writes the images: for each architecture a docker-archive, and of all one OCI layout.
func (r *Release) Images(ctx context.Context, arches []string) error {
	var images []*image.Image
	for _, arch := range arches {
		p, err := r.platform(ctx, arch)
		if err != nil {
			return err
		}
		i, err := image.New(arch, r.tree.Stamp, p.rootfs(), filepath.Join(r.work, arch, "image"))
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
	if err := r.wrote(file, "index "+digest.String()); err != nil {
		return err
	}
	for _, i := range images {
		if err := r.tell(i.Arch, i.OCI); err != nil {
			return err
		}
	}
	return nil
}

func (r *Release) tell(arch string, img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return fmt.Errorf("image for %s: %w", arch, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("image for %s: %w", arch, err)
	}
	fmt.Fprintf(r.log, "  linux/%s  %s to pull  manifest %s\n", arch, megabytes(m.Config.Size+m.Layers[0].Size), digest)
	return nil
}

// name is what a file of the release is called.
func (r *Release) name(suffix string) string { return "meshcni_" + r.tree.Number() + "_" + suffix }
