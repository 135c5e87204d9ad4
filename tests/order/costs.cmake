# SPDX-License-Identifier: Apache-2.0
# CTest reads this. Tests that take long, in seconds or so, with whatever build takes longest: it starts them first, so that none
# of them is alone at the end. Names that a build does not have do no harm.
set_tests_properties(python_models python_families PROPERTIES COST 400)
set_tests_properties(coordinator_hermetic_test coordinator_moments coordinator_moments_one PROPERTIES COST 300)
set_tests_properties(llama_attention_test PROPERTIES COST 250)
set_tests_properties(chaos_more chaos_memory_more cuda_emulated_wgmma_test PROPERTIES COST 200)
set_tests_properties(cuda_emulated_latents_test cuda_emulated_numbers_test e2e_bits PROPERTIES COST 150)
set_tests_properties(kernels_attention_f32_test kernels_attention_f16_test kernels_attention_bf16_test kernels_attention_int8_test
    kernels_attention_fp8_test coordinator_store_torn_test worker_disk_test PROPERTIES COST 140)
set_tests_properties(python_client bench_device_test client_api_unix_test quickstart_run PROPERTIES COST 110)
set_tests_properties(chaos_test chaos_memory_test cuda_emulated_persistent_test cuda_emulated_shrink_test e2e_flood PROPERTIES COST 90)
set_tests_properties(e2e_chaos_stores_on e2e_chaos_stores_off PROPERTIES COST 80)
set_tests_properties(nccl_conformance e2e_kinds e2e_snapshot_forget proto_sp_test client_completion_zsh_test
    client_completion_bash_test PROPERTIES COST 60)
set_tests_properties(e2e_forget e2e_exact e2e_disk e2e_device e2e_tls examples_generate deploy_tracing llama_cache_test
    proto_tls_links_test kernels_jobs_test PROPERTIES COST 40)
