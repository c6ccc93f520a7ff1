target_sources(${program} PRIVATE ${PROJECT_SOURCE_DIR}/plugins/transports/tcp/tcp_frame.c)
target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/plugins/transports/tcp)
