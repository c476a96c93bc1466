{{/* What no schema says: what cannot work, alone or together. All of them at once. */}}
{{- define "meshcni.validate" -}}
{{- $bad := list -}}
{{- $image := include "meshcni.image" . -}}
{{- if not (include "meshcni.hasHost" $image) -}}
{{- with $.Values.image.registry -}}
{{- $bad = append $bad (printf "image.registry %q is no registry's host: without a dot or a port it is a name at the container runtime's default registry, where anybody may own it" .) -}}
{{- else -}}
{{- $bad = append $bad (printf "image.registry is not set, and this chart, which is of no release, has no default: say image.registry=HOST for the registry that you pushed the image to, or image.registry=localhost if each node has it imported as localhost/%s" $image) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.cni.ownFile (not $.Values.cni.chained) }}{{- $bad = append $bad "cni.ownFile needs cni.chained: a list of our own holds the network's plugins too" }}{{- end -}}
{{- with $.Values.cni.confName -}}
{{- if eq (toString $.Values.cni.ownFile) "auto" }}{{- $bad = append $bad (printf "cni.confName %q: must be empty with cni.ownFile auto, which chains into the file that the runtime loads" .) }}
{{- else if and $.Values.cni.ownFile (not (hasSuffix ".conflist" .)) }}{{- $bad = append $bad (printf "cni.confName %q: with cni.ownFile it must end in .conflist" .) }}{{- end -}}
{{- if and (not $.Values.cni.chained) (hasSuffix ".conflist" .) }}{{- $bad = append $bad (printf "cni.confName %q: without cni.chained it must end in .conf or .json" .) }}{{- end -}}
{{- end -}}
{{- with $.Values.fullnameOverride -}}
{{- if not (or (eq . "meshcni-node") (hasPrefix "meshcni-node-" .)) }}{{- $bad = append $bad (printf "fullnameOverride %q must be meshcni-node or begin with meshcni-node-: by that the plugin knows the agent's own pods, and lets them start" .) }}{{- end -}}
{{- end -}}
{{- if and $.Values.networkAttachmentDefinition.enabled $.Values.cni.chained }}{{- $bad = append $bad "networkAttachmentDefinition.enabled needs cni.chained false: Multus would add the plugin to pods that the chain has added it to already" }}{{- end -}}
{{- if and $.Values.metrics.enabled (eq ($.Values.metrics.port | int) ($.Values.health.port | int)) }}{{- $bad = append $bad "metrics.port and health.port must differ" }}{{- end -}}
{{- if not $.Values.metrics.enabled -}}
{{- range $name := list "service" "serviceMonitor" "podMonitor" "scrapeAnnotations" -}}
{{- $on := index $.Values.metrics $name -}}
{{- if kindIs "map" $on }}{{- $on = $on.enabled }}{{- end -}}
{{- if $on }}{{- $bad = append $bad (printf "metrics.%s needs metrics.enabled" $name) }}{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.metrics.serviceMonitor.enabled $.Values.metrics.podMonitor.enabled }}{{- $bad = append $bad "metrics.serviceMonitor and metrics.podMonitor together would count everything twice" }}{{- end -}}
{{- if and (has "ambient" (include "meshcni.dialects" . | fromYamlArray)) (not (get ($.Values.ambient | default dict) "enabled")) }}{{- $bad = append $bad "dialect ambient needs ambient.enabled: its pods wait for an agent that hands them to the node's proxy" }}{{- end -}}
{{- $acts := or (ne $.Values.repair.mode "none") (include "meshcni.verifies" .) -}}
{{- if and $acts (eq (include "meshcni.sidecars" . | fromYamlArray | join ",") "consul") (not (and $.Values.repair.initContainer $.Values.repair.exitCodes)) }}{{- $bad = append $bad "repair.initContainer and repair.exitCodes must be set for consul, which has no container of its own that checks redirection: repair criteria: no init container to look at" }}{{- end -}}
{{- if and $.Values.ambient.enabled (has (toString $.Values.agent) (list "off" "false")) }}{{- $bad = append $bad "agent off does not go with ambient.enabled, whose pods only the node's agent can capture" }}{{- end -}}
{{- $seconds := include "meshcni.tokenSeconds" . | int -}}
{{- if or (lt $seconds 600) (gt $seconds 86400) (eq $seconds 3607) }}{{- $bad = append $bad (printf "tokenLifetime %s: it must be between 10m and 24h, and not 3607s, which API servers extend to a year" $.Values.tokenLifetime) }}{{- end -}}
{{- if eq $.Values.pluginServiceAccount.name (include "meshcni.serviceAccountName" .) }}{{- $bad = append $bad "pluginServiceAccount.name and serviceAccount.name must differ: the plugin needs less than the agent" }}{{- end -}}
{{- if $bad }}{{- fail (printf "\n\nthese values cannot work:\n  - %s\n" (join "\n  - " $bad)) }}{{- end -}}
{{- end -}}
